#!/usr/bin/env python3
"""tools/setup.sh and what it runs, where something is wrong: one line says what to do, and nothing is left half done.

Nothing is installed, built or fetched: PATH holds stand-ins and the few programs that the scripts need, the package
index is on this host, and the cache is a temporary folder.
"""

import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent / "tools"
sys.path.insert(0, str(TOOLS / "setup"))
sys.dont_write_bytecode = True
import llama  # noqa: E402

REAL = ("bash", "dirname", "sed", "sort", "grep", "mktemp", "rm", "touch")
HEADER_PACKAGES = ("libbenchmark-dev libcli11-dev libfmt-dev libgtest-dev libhwy-dev libsodium-dev libxxhash-dev "
                   "libyaml-cpp-dev nlohmann-json3-dev")
APT = "apt-get -o DPkg::Lock::Timeout=300 -qq"

# Runs a Python script without root's right to write everywhere (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH), which no
# permission bits hold back.
WITHOUT_OVERRIDE = """
import ctypes, os, runpy, sys
libc = ctypes.CDLL(None, use_errno=True)
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
if libc.capget(header, data) != 0: sys.exit(f"capget: {os.strerror(ctypes.get_errno())}")
data[0] &= ~6
if libc.capset(header, data) != 0: sys.exit(f"capset: {os.strerror(ctypes.get_errno())}")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Index(http.server.ThreadingHTTPServer):
    """A package index on this host. It serves `content` under the name of the pinned file, or hangs where it is None;
    `asked` is set once a request is there."""

    daemon_threads = True

    def __init__(self, content):
        self.content = content
        self.asked, self.closing = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), IndexHandler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self.closing.set()
        self.shutdown()
        self.server_close()


class IndexHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.set()
        if self.server.content is None:
            self.server.closing.wait()
            return
        page = f'<a href="/{llama.SDIST}">{llama.SDIST}</a>'.encode()
        body = self.server.content if self.path == f"/{llama.SDIST}" else page
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if body == page else "application/gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        pass


def closed_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class SetupTestCase(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="qkv_setup_test_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.bin, self.temp, self.cache = (self.folder / name for name in ("bin", "tmp", "cache"))
        self.bin.mkdir()
        self.temp.mkdir()
        for name in REAL:
            real = shutil.which(name)
            self.assertIsNotNone(real, f"{name} is needed by this test")
            (self.bin / name).symlink_to(real)
        for name in ("cmake", "ninja", "ccache", "mold", "pkg-config"):
            self.stand_in(name)
        for name in ("cc", "c++"):  # has all headers
            self.stand_in(name, f'if [ "$1" = --version ]; then echo "{name} 1.0"; exit; fi\n'
                                'while read -r _; do :; done')
        self.stand_in("python3", f'exec "{sys.executable}" "$@"')
        self.become_user(1000)
        self.stand_in("apt-get", 'echo "apt-get $*" >>"$APT_CALLS"; exit 1')
        # No settings from outside: neither pip's nor this project's.
        self.env = {k: v for k, v in os.environ.items()
                    if not k.upper().startswith(("PIP_", "QKV_")) and not k.upper().endswith("_PROXY")
                    and k not in ("CC", "CXX", "XDG_CACHE_HOME")}
        self.env.update(PATH=str(self.bin), BIN=str(self.bin), TMPDIR=str(self.temp), QKV_CACHE=str(self.cache),
                        APT_CALLS=str(self.folder / "apt_calls"), PIP_CONFIG_FILE=os.devnull, NO_PROXY="127.0.0.1",
                        PYTHONDONTWRITEBYTECODE="1")
        self.use_index(closed_port())

    def stand_in(self, name, script="exit 0"):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def become_user(self, number):
        self.stand_in("id", f'[ "$*" = -u ] && echo {number}')

    def use_index(self, port):
        self.env["PIP_INDEX_URL"] = f"http://127.0.0.1:{port}/simple"

    def serve(self, content):
        index = Index(content)
        self.addCleanup(index.close)
        self.use_index(index.server_port)
        return index

    def run_script(self, *words):
        return subprocess.run([self.bin / "bash", *words], env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=60, check=False)

    def setup(self, *arguments):
        return self.run_script(TOOLS / "setup.sh", *arguments)

    def packages(self, *groups):
        return self.run_script(TOOLS / "setup" / "packages.sh", *groups)

    def apt_calls(self):
        path = self.folder / "apt_calls"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def assert_fails(self, run, *parts, status=1):
        """It failed with one line on stderr, which has these parts."""
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        self.assertRegex(run.stderr, r"\Asetup: [^\n]+\n\Z")
        for part in parts:
            self.assertIn(str(part), run.stderr)

    def assert_left(self, *patterns):
        """The cache holds a file for each of these patterns and no other; nothing is left in the temporary folder."""
        files = [p for p in self.cache.rglob("*") if not p.is_dir()]
        for pattern in patterns:
            matching = list(self.cache.glob(pattern))
            self.assertEqual(len(matching), 1, f"{pattern}: {files}")
            files.remove(matching[0])
        self.assertEqual(files, [])
        self.assertEqual([p for p in self.cache.glob("llama/*") if p.is_dir()], [])
        self.assertEqual(list(self.temp.iterdir()), [])


class LlamaTest(SetupTestCase):
    def test_wrong_file_given(self):
        wrong = self.folder / "wrong.tar.gz"
        wrong.write_bytes(b"not the source")
        self.env["QKV_LLAMA_SDIST"] = str(wrong)
        run = self.setup()
        self.assert_fails(run, wrong, "does not have the pinned sha256", llama.SHA256[:12], llama.SDIST)
        self.assertEqual(run.stdout, "")
        self.assert_left("llama/*.lock", "llama/*.log")
        self.assertTrue(wrong.exists())

    def test_missing_file_given(self):
        self.env["QKV_LLAMA_SDIST"] = str(self.folder / "none")
        for variant in ("tsan", "avx2"):
            with self.subTest(variant=variant):
                self.assert_fails(self.setup(variant), f"{self.folder / 'none'}: No such file or directory",
                                  "correct it or unset it")
                self.assert_left(f"llama/*-{variant}-*.lock", f"llama/*-{variant}-*.log")
                shutil.rmtree(self.cache)

    def test_no_network(self):
        self.assert_fails(self.setup(), f"could not download {llama.PACKAGE} {llama.VERSION}", "QKV_LLAMA_SDIST",
                          self.cache / "llama")
        self.assert_left("llama/*.lock", "llama/*.log", "downloads/lock")
        log = next(self.cache.glob("llama/*.log")).read_text(encoding="utf-8")
        self.assertIn(self.env["PIP_INDEX_URL"], log)  # it asked where it was told to, and nowhere else

    def test_wrong_file_from_index(self):
        index = self.serve(b"not the source")
        self.assert_fails(self.setup(), "from the package index does not have the pinned sha256",
                          "nothing of it was run")
        self.assertTrue(index.asked.is_set())
        self.assert_left("llama/*.lock", "llama/*.log", "downloads/lock")

    def test_damaged_stored_file_is_not_used(self):
        stored = self.cache / "downloads" / llama.SDIST
        stored.parent.mkdir(parents=True)
        stored.write_bytes(b"cut off")
        run = self.setup()
        self.assert_fails(run, "could not download")
        self.assertIn(f"the stored {llama.SDIST} is damaged", run.stdout)
        self.assert_left("llama/*.lock", "llama/*.log", "downloads/lock")

    def test_interrupted_download(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                index = self.serve(None)
                process = subprocess.Popen([self.bin / "bash", TOOLS / "setup.sh"], env=self.env, text=True,
                                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                self.addCleanup(process.kill)
                self.assertTrue(index.asked.wait(30), "pip asked for nothing")
                process.send_signal(number)
                out, err = process.communicate(timeout=20)
                self.assert_fails(subprocess.CompletedProcess([], process.returncode, out, err), "interrupted",
                                  "run the same command again", status=128 + number)
                self.assert_left("llama/*.lock", "llama/*.log", "downloads/lock")

    def test_cache_cannot_be_made(self):
        (self.folder / "file").touch()
        self.env["QKV_CACHE"] = str(self.folder / "file" / "cache")
        self.assert_fails(self.setup(), self.folder / "file", "Not a directory", "set QKV_CACHE to another folder")

    def test_cache_is_not_writable(self):
        self.cache.mkdir(mode=0o500)
        run = subprocess.run([sys.executable, "-c", WITHOUT_OVERRIDE, TOOLS / "setup" / "llama.py"], env=self.env,
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        self.assert_fails(run, f"{self.cache / 'llama'}: Permission denied: make it writable", "set QKV_CACHE")
        self.assertEqual(list(self.cache.iterdir()), [])

    def test_compiler_does_not_run(self):
        self.stand_in("c++", "exit 1")
        run = self.run_script("-c", f'exec python3 "{TOOLS}/setup/llama.py"')
        self.assert_fails(run, "the compiler 'c++' does not run", "install g++ or set CC and CXX")
        self.assertFalse(self.cache.exists())

    def test_folder_of_no_build(self):
        for variant in ("tsan", "avx2"):
            with self.subTest(variant=variant):
                run = self.run_script("-c", f'exec python3 "{TOOLS}/setup/llama.py" {variant} --dir')
                self.assert_fails(run, f"llama.cpp ({variant}) is not built yet: run tools/setup.sh {variant}")
                self.assertEqual(run.stdout, "")
                self.assertFalse(self.cache.exists())

    def test_variants_are_builds_of_their_own(self):
        keys = {variant: llama.build_key(variant)[0] for variant in llama.VARIANT_FLAGS}
        self.assertEqual(len(set(keys.values())), len(keys), keys)
        # Of two values of a flag CMake takes the last.
        flags = dict(flag.removeprefix("-D").split("=", 1)
                     for flag in (*llama.CMAKE_FLAGS, *llama.VARIANT_FLAGS["avx2"]))
        self.assertEqual({name: flags[f"GGML_{name}"] for name in ("NATIVE", "AVX2", "AVX512")},
                         {"NATIVE": "OFF", "AVX2": "ON", "AVX512": "OFF"})

    def test_installed_llama_needs_none(self):
        self.env["QKV_LLAMA_PREFIX"] = str(self.folder)
        run = self.setup()
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""))
        self.assertFalse(self.cache.exists())

    def test_unknown_argument(self):
        run = self.setup("--all")
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertEqual(run.stderr, "usage: tools/setup.sh [--check] [--fuzz] [release|avx2|tsan]\n")


class PackagesTest(SetupTestCase):
    def lose(self, *programs):
        for program in programs:
            (self.bin / program).unlink()

    def test_nothing_missing(self):
        run = self.packages("build")
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""))

    def test_user_is_told_the_command(self):
        self.lose("mold", "ninja")
        run = self.setup()
        self.assert_fails(run)
        self.assertEqual(run.stderr, "setup: packages are missing. Run: sudo apt-get install -y "
                                     "--no-install-recommends mold ninja-build\n")
        self.assertEqual((run.stdout, self.apt_calls()), ("", []))
        self.assertFalse(self.cache.exists())

    def test_each_program_of_each_group(self):
        programs = {"cmake": "cmake", "ninja": "ninja-build", "ccache": "ccache", "mold": "mold", "pkg-config": "pkg-config"}
        for program, package in programs.items():
            with self.subTest(program=program):
                self.lose(program)
                self.assert_fails(self.packages("build"), f"recommends {package}\n")
                self.stand_in(program)
        self.assert_fails(self.packages("build", "check"), "recommends clang-19 clang-format-19 clang-tidy-19\n")
        for program in ("clang++-19", "clang-tidy-19", "clang-format-19"):
            self.stand_in(program)
        self.assertEqual(self.packages("build", "check").returncode, 0)
        self.assert_fails(self.packages("build", "neon"), "recommends g++-aarch64-linux-gnu qemu-user\n")

    def test_pip_is_missing(self):
        self.stand_in("python3", "exit 1")
        self.assert_fails(self.packages("build"), "recommends python3-pip\n")
        self.lose("python3")
        self.assert_fails(self.packages("build"), "recommends python3 python3-pip\n")

    def test_no_compiler(self):
        self.lose("c++")
        self.assert_fails(self.packages("build"), f"recommends g++ {HEADER_PACKAGES}\n")

    def test_headers_are_looked_for_where_the_compiler_looks(self):
        real = shutil.which("c++")
        self.assertIsNotNone(real, "c++ is needed by this test")
        headers = self.folder / "headers"
        (headers / "CLI").mkdir(parents=True)
        self.env["CXX"] = f"{real} -nostdinc -I{headers}"  # so it finds none
        self.env["PATH"] += os.pathsep + os.path.dirname(real)
        self.assert_fails(self.packages("build"), f"recommends {HEADER_PACKAGES}\n")
        (headers / "CLI" / "CLI.hpp").touch()
        (headers / "sodium.h").touch()
        rest = HEADER_PACKAGES.replace("libcli11-dev ", "").replace("libsodium-dev ", "")
        self.assert_fails(self.packages("build"), f"recommends {rest}\n")

    def test_compiler_does_not_run(self):
        self.stand_in("c++", "exit 1")
        self.assert_fails(self.packages("build"), "the compiler 'c++' does not run: install g++, or correct or unset")

    def test_other_distribution(self):
        self.lose("apt-get", "mold")
        self.assert_fails(self.packages("build"), "missing (by their Debian names): mold. Install them")

    def test_unknown_group(self):
        run = self.packages("build", "all")
        self.assertEqual(run.returncode, 2)
        self.assertEqual(run.stderr, "packages.sh: unknown group 'all': use build, check, neon or fuzz\n")

    def test_root_installs_what_is_missing(self):
        self.become_user(0)
        self.lose("mold", "ninja")
        self.stand_in("apt-get", 'echo "apt-get $*" >>"$APT_CALLS"; for p in mold ninja; do\n'
                                 'printf "#!/bin/sh\\n" >"$BIN/$p"; /bin/chmod 755 "$BIN/$p"; done')
        run = self.packages("build")
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "setup: installing mold ninja-build\n", ""))
        self.assertEqual(self.apt_calls(), [f"{APT} -y --no-install-recommends install mold ninja-build"])
        self.assertEqual(list(self.temp.iterdir()), [])

    def test_root_cannot_install(self):
        self.become_user(0)
        self.lose("mold")
        self.stand_in("apt-get", 'echo "apt-get $*" >>"$APT_CALLS"; echo "E: no such package" >&2; exit 100')
        self.assert_fails(self.packages("build"), "apt-get could not install mold (E: no such package): see "
                                                  f"{self.temp}/")
        self.assertEqual(self.apt_calls(), [f"{APT} -y --no-install-recommends install mold", f"{APT} update"])

    def test_installing_did_not_help(self):
        self.become_user(0)
        self.lose("mold")
        self.stand_in("apt-get")
        self.assert_fails(self.packages("build"), "still not found after installing: mold.")


if __name__ == "__main__":
    unittest.main()
