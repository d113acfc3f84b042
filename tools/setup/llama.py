#!/usr/bin/env python3
"""Builds the pinned llama.cpp once into the cache folder. Usage: llama.py [release|avx2|tsan] [--dir]

--dir prints the folder of the finished build (source/ and build/bin/) and builds nothing.

The cache is $QKV_CACHE, else $XDG_CACHE_HOME/qkvshare, else ~/.cache/qkvshare:
  downloads/      the source distribution, its hash verified
  llama/KEY/      a finished build; KEY stands for everything that it depends on
  llama/KEY.*     lock, log, and the temporary folder of a build that is going on
A build becomes visible by one rename, so what is there is complete. Without network, set QKV_LLAMA_SDIST to the file.
"""

import argparse
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SDIST = f"llama_cpp_python-{VERSION}.tar.gz"
SOURCE_ROOT = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/"
# Left out of the extracted tree: 60% of its size, and nothing that the build reads.
SOURCE_SKIP = ("app", "benches", "ci", "conversion", "docs", "examples", "gguf-py", "grammars", "media", "models", "pocs",
               "requirements", "scripts", "skills", "tests", "tools", ".git")
NEEDED_BYTES = 1_500_000_000

CMAKE_FLAGS = [
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    "-DLLAMA_BUILD_COMMON=ON", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_TOOLS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF", "-DGGML_NATIVE=ON",
]
TSAN = "-fsanitize=thread -g1"
# No path of the build machine in what `make install` installs. {source}: the extracted sources.
COMPILE_FLAGS = {variant: "-ffile-prefix-map={source}/=llama.cpp/" + more
                 for variant, more in (("release", ""), ("avx2", ""), ("tsan", f" {TSAN}"))}
VARIANT_FLAGS = {
    "release": [],
    # For comparisons as on a CPU without AVX-512. Of two values of a flag the last counts.
    "avx2": ["-DGGML_NATIVE=OFF", "-DGGML_SSE42=ON", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON",
             "-DGGML_BMI2=ON", "-DGGML_AVX512=OFF"],
    # OpenMP's own barriers are invisible to the thread sanitizer.
    "tsan": ["-DGGML_OPENMP=OFF", "-DCMAKE_SHARED_LINKER_FLAGS=-fsanitize=thread",
             "-DCMAKE_EXE_LINKER_FLAGS=-fsanitize=thread"],
}

# Stands in for the package's build backend while pip looks at the metadata of what it downloaded: so neither the
# real backend nor anything of the package is installed or run.
STUB_BACKEND = f'''
import os
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "{PACKAGE.replace('-', '_')}-{VERSION}.dist-info"
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\\nName: {PACKAGE}\\nVersion: {VERSION}\\n")
    return name
'''


class SetupError(Exception):
    """One line that says what is wrong and what to do."""


class Interrupted(BaseException):
    def __init__(self, number):
        self.number = number


def say(text):
    print(f"setup: {text}", flush=True)


class Progress:
    """A line that is rewritten in place on a terminal, and nothing elsewhere."""

    def __init__(self):
        self.on = sys.stdout.isatty()

    def show(self, text):
        if self.on:
            print(f"\r\033[Ksetup: {text}", end="", flush=True)

    def clear(self):
        if self.on:
            print("\r\033[K", end="", flush=True)


def cache_folder():
    if os.environ.get("QKV_CACHE"):
        return Path(os.environ["QKV_CACHE"]).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "qkvshare" if base else Path.home() / ".cache" / "qkvshare"


def compilers():
    return os.environ.get("CC") or "cc", os.environ.get("CXX") or "c++"


def build_key(variant):
    """Names a build by all that it depends on: source, flags, compilers and CPU (it is built for this CPU)."""
    facts = [PACKAGE, VERSION, SHA256, [*CMAKE_FLAGS, *VARIANT_FLAGS[variant], COMPILE_FLAGS[variant]],
             platform.machine()]
    for compiler in compilers():
        try:
            out = subprocess.run([*compiler.split(), "--version"], stdout=subprocess.PIPE, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as e:
            raise SetupError(f"the compiler '{compiler}' does not run ({e}): install g++ or set CC and CXX") from e
        facts.append(out.decode(errors="replace").splitlines()[0])
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
        facts.append(sorted(match.group(1).split()) if match else [])
    except OSError:
        facts.append(platform.processor())
    return f"{VERSION}-{variant}-{digest_of(facts)}", facts


def digest_of(facts):
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def lock(path, waiting_for):
    """Takes an exclusive lock that ends with this process. The file object must be kept."""
    file = open(path, "w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for another run that is {waiting_for}")
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def die_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM)


def run_logged(command, log, env, on_line):
    """Runs a command with its output in the log; on_line sees each line. Returns the exit status."""
    with open(log, "ab") as file:
        file.write(f"$ {' '.join(map(str, command))}\n".encode())
        file.flush()
        # Its own process group, so that an interrupt ends all of it; and it ends if this process is killed.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 env=env, start_new_session=True,
                                 preexec_fn=die_with_parent if sys.platform == "linux" else None)
        try:
            for line in child.stdout:
                file.write(line)
                on_line(line.decode(errors="replace").rstrip())
            return child.wait()
        except BaseException:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            raise


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def check_space(cache):
    free = shutil.disk_usage(cache).free
    if free < NEEDED_BYTES:
        raise SetupError(f"{cache} has {free / 1e9:.1f} GB free and the build of llama.cpp needs "
                         f"{NEEDED_BYTES / 1e9:.1f} GB: free some, or set QKV_CACHE to a folder on another disk")


def pip_commands(folder, requirements):
    """pip with the stub backend, then pip's own way should a newer pip not accept the stub."""
    common = ["-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--no-cache-dir", "--retries", "2",
              "--disable-pip-version-check", "--progress-bar", "off", "--require-hashes", "-r", str(requirements),
              "-d", str(folder)]
    python = sys.executable
    if subprocess.run([python, "-c", "import pip"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise SetupError(f"{python} has no pip: install python3-pip, then run this again")
    yield [python, *common, "--no-build-isolation"], True
    yield [python, *common], False


def explain_pip(output, log):
    """The reason of a failed download, or None where another way of calling pip may help."""
    if "DO NOT MATCH THE HASHES" in output:
        return (f"{SDIST} from the package index does not have the pinned sha256 {SHA256[:12]}...: it was discarded "
                f"and nothing of it was run. Check pip's index and proxy settings, then run this again ({log})")
    if "No space left" in output or "Errno 28" in output:
        return "the disk filled up while downloading llama.cpp: free 1.5 GB or set QKV_CACHE, then run this again"
    if re.search(r"NewConnectionError|ConnectionError|Max retries|ReadTimeout|Temporary failure|ProxyError|SSLError|"
                 r"No matching distribution|HTTP error|Network is unreachable", output, re.IGNORECASE):
        return (f"could not download {PACKAGE} {VERSION}: check the network and pip's index settings and run this "
                f"again, or set QKV_LLAMA_SDIST to a copy of {SDIST} ({log})")
    return None


def download(cache, folder, log, progress):
    """Leaves the verified source distribution in the cache and returns its path. folder: for temporary files."""
    given = os.environ.get("QKV_LLAMA_SDIST")
    if given:
        try:
            digest = sha256_of(given)
        except OSError as e:
            raise SetupError(f"QKV_LLAMA_SDIST={given}: {e.strerror}: correct it or unset it") from e
        if digest != SHA256:
            raise SetupError(f"QKV_LLAMA_SDIST={given} does not have the pinned sha256 {SHA256[:12]}...: "
                             f"get {SDIST} again")
        return Path(given)
    target = cache / "downloads" / SDIST
    target.parent.mkdir(parents=True, exist_ok=True)
    with lock(target.parent / "lock", "downloading llama.cpp"):
        if target.exists():
            if sha256_of(target) == SHA256:
                return target
            say(f"the stored {SDIST} is damaged: downloading it again")
            target.unlink()
        say(f"downloading {PACKAGE} {VERSION} (75 MB)")
        requirements = folder / "requirements.txt"
        requirements.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
        stub = folder / "stub" / "scikit_build_core"
        stub.mkdir(parents=True)
        (stub / "__init__.py").touch()
        (stub / "build.py").write_text(STUB_BACKEND, encoding="utf-8")
        (folder / "pip").mkdir()
        for command, stubbed in pip_commands(folder / "pip", requirements):
            env = dict(os.environ, TMPDIR=str(folder))
            if stubbed:
                env["PYTHONPATH"] = str(stub.parent)
            output = []

            def on_line(line, output=output):
                output.append(line)
                progress.show(line[:100])

            status = run_logged(command, log, env, on_line)
            progress.clear()
            reason = explain_pip("\n".join(output), log)
            if status == 0 or reason:
                break
        if status != 0:
            raise SetupError(reason or f"pip could not download {PACKAGE} {VERSION}: see {log}")
        fetched = folder / "pip" / SDIST
        if not fetched.exists() or sha256_of(fetched) != SHA256:
            raise SetupError(f"pip left no valid {SDIST}: see {log}")
        os.replace(fetched, target)
    return target


def extract(sdist, target):
    """Writes the parts of llama.cpp that the build needs; regular files only."""
    with tarfile.open(sdist) as tar:
        for member in tar:
            if not member.name.startswith(SOURCE_ROOT) or not member.isreg():
                continue
            parts = member.name[len(SOURCE_ROOT):].split("/")
            if parts[0] in SOURCE_SKIP or ".." in parts or "" in parts:
                continue
            path = target.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with tar.extractfile(member) as source, open(path, "wb") as out:
                shutil.copyfileobj(source, out)
            os.chmod(path, 0o755 if member.mode & 0o100 else 0o644)


def build_env(folder, facts):
    """The compilers see no flags from outside, and a repeated build finds its objects in ccache."""
    env = {k: v for k, v in os.environ.items() if k not in ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS")}
    # ccache does not know what -march=native means here: the namespace does.
    env.update(CCACHE_BASEDIR=str(folder), CCACHE_NOHASHDIR="1", CCACHE_NAMESPACE=f"qkvshare-{digest_of(facts[-1])}",
               CC=compilers()[0], CXX=compilers()[1])
    return env


def compile_llama(folder, facts, variant, log, progress):
    source, build = folder / "source", folder / "build"
    env = build_env(folder, facts)
    flags = COMPILE_FLAGS[variant].format(source=source)
    steps = [
        ["cmake", "-S", source, "-B", build, "-G", "Ninja", *CMAKE_FLAGS, *VARIANT_FLAGS[variant],
         f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}"],
        ["cmake", "--build", build, "--target", "llama", "llama-common", "-j", str(os.cpu_count() or 2)],
    ]
    for step in steps:
        def on_line(line):
            match = re.match(r"\[(\d+/\d+)\]", line)
            if match:
                progress.show(f"building llama.cpp ({variant}): {match.group(1)}")

        status = run_logged(step, log, env, on_line)
        progress.clear()
        if status != 0:
            if shutil.disk_usage(folder).free < 100_000_000:
                raise SetupError("the disk filled up while building llama.cpp: free 1.5 GB or set QKV_CACHE, then run "
                                 "this again")
            raise SetupError(f"llama.cpp did not build: see the end of {log}, then run this again")
    # Only the libraries are needed from here on.
    for entry in build.iterdir():
        if entry.name != "bin":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def make_build(cache, key, facts, variant):
    parent = cache / "llama"
    final = parent / key
    log = parent / f"{key}.log"
    progress = Progress()
    parent.mkdir(parents=True, exist_ok=True)
    with lock(parent / f"{key}.lock", "building llama.cpp"):
        if (final / "complete").exists():
            return
        for leftover in [final, *parent.glob(f"{key}.tmp-*")]:
            shutil.rmtree(leftover, ignore_errors=True)
        check_space(cache)
        log.write_text("", encoding="utf-8")
        folder = Path(tempfile.mkdtemp(prefix=f"{key}.tmp-", dir=parent))
        try:
            work = folder / "download"
            work.mkdir()
            sdist = download(cache, work, log, progress)
            shutil.rmtree(work)
            extract(sdist, folder / "source")
            say(f"building llama.cpp ({variant}): 3-4 minutes on 2 cores")
            start = time.monotonic()
            compile_llama(folder, facts, variant, log, progress)
            (folder / "complete").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
            folder.chmod(0o755)
            os.rename(folder, final)
            say(f"llama.cpp ({variant}) is ready after {time.monotonic() - start:.0f} s")
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            progress.clear()
            shutil.rmtree(folder, ignore_errors=True)


def on_signal(number, _frame):
    raise Interrupted(number)


def main():
    parser = argparse.ArgumentParser(description="Builds the pinned llama.cpp once into the cache folder.")
    parser.add_argument("variant", nargs="?", default="release", choices=VARIANT_FLAGS)
    parser.add_argument("--dir", action="store_true", help="print the folder of the finished build, build nothing")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    try:
        cache = cache_folder()
        key, facts = build_key(args.variant)
        ready = (cache / "llama" / key / "complete").exists()
        if args.dir:
            if not ready:
                raise SetupError(f"llama.cpp ({args.variant}) is not built yet: run tools/setup.sh {args.variant}")
            print(cache / "llama" / key)
        elif not ready:
            make_build(cache, key, facts, args.variant)
        return 0
    except SetupError as e:
        print(f"setup: {e}", file=sys.stderr)
        return 1
    except OSError as e:
        full = e.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free 1.5 GB" if full else "make it writable"
        print(f"setup: {e.filename or cache_folder()}: {e.strerror}: {hint}, or set QKV_CACHE to another folder, then "
              "run this again", file=sys.stderr)
        return 1
    except Interrupted as e:
        print("setup: interrupted, nothing was left half done: run the same command again to go on", file=sys.stderr)
        return 128 + e.number


if __name__ == "__main__":
    sys.exit(main())
