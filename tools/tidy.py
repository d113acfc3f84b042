#!/usr/bin/env python3
"""Runs clang-tidy over the sources. Usage: tidy.py [BUILD_FOLDER] [FILE...]

A file that passed is remembered in the cache folder by a hash of all that the result depends on (the file, the
project headers that it includes, its command, .clang-tidy), so that only what changed is checked again.
"""

import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIDY = "clang-tidy-19"
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
FOLDERS = ("src/", "include/", "tests/", "bench/", "fuzz/")
KEEP_DAYS = 30


def cache_folder():
    base = os.environ.get("QKV_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "qkvshare")
    return Path(base) / "tidy"


def dependencies(path, seen):
    """Adds path and the project headers that it includes, directly or not, to seen."""
    if path in seen:
        return
    seen.add(path)
    for name in INCLUDE.findall(path.read_bytes()):
        for folder in (ROOT / "src", ROOT / "include", ROOT, path.parent):
            candidate = folder / os.fsdecode(name)
            if candidate.is_file():
                dependencies(candidate, seen)
                break


def key_of(entry, version):
    digest = hashlib.sha256()
    # The same in every checkout.
    digest.update(f"{version}\n{entry['command']}\n".replace(str(ROOT), "").encode())
    files = set()
    dependencies(Path(entry["file"]), files)
    for path in sorted(files) + [ROOT / ".clang-tidy"]:
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def is_test(path):
    return path.endswith("_test.cc")


def run_tidy(entry, build):
    # Following every path through a test's assertions takes four fifths of the time, and finds nothing in them.
    checks = ["--checks=-clang-analyzer-*"] if is_test(entry["file"]) else []
    command = [TIDY, "-p", str(build), "--quiet", *checks, "--extra-arg=-Wno-unknown-warning-option",
               f"--header-filter=^{re.escape(str(ROOT))}/(src|include|tests)/", entry["file"]]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    output = result.stdout.decode(errors="replace")
    if result.returncode != 0 and not output.strip():
        output = result.stderr.decode(errors="replace")
    return result.returncode, output


def main():
    build = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "clang").resolve()
    only = {str(Path(name).resolve()) for name in sys.argv[2:]}
    version = subprocess.run([TIDY, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode()
    stamps = cache_folder()
    stamps.mkdir(parents=True, exist_ok=True)
    for stamp in stamps.iterdir():
        if stamp.stat().st_mtime < time.time() - KEEP_DAYS * 86400:
            stamp.unlink(missing_ok=True)

    todo = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = Path(entry["file"])
        if not path.is_file() or not path.is_relative_to(ROOT):
            continue
        if str(path.relative_to(ROOT)).startswith(FOLDERS) and (not only or str(path) in only):
            stamp = stamps / key_of(entry, version)
            if stamp.exists():
                stamp.touch()
            else:
                todo[path] = (entry, stamp)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("QKV_JOBS") or os.cpu_count() or 2)) as pool:
        jobs = {pool.submit(run_tidy, entry, build): (path, stamp) for path, (entry, stamp) in todo.items()}
        for job in concurrent.futures.as_completed(jobs):
            path, stamp = jobs[job]
            status, output = job.result()
            if status == 0:
                stamp.touch()
            else:
                failed += 1
                print(output.replace(str(ROOT) + "/", ""), flush=True)
    print(f"clang-tidy: {len(todo)} files checked, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
