#!/usr/bin/env python3
"""What `make install` installs: used by programs outside the tree, moved to another folder, free of this machine's paths.

Runs in the build folder; $QKV_WRITE_TINY_MODEL names a program. Nothing is installed outside a temporary folder.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path.cwd()
CACHE = dict(re.findall(r"^(\w+):\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(encoding="utf-8"), re.MULTILINE))
TEXT = "The cat of the farmer sleeps on the mill stone, and the children cut holes in the ice. " * 3


def run(*command, cwd=None, **variables):
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, env={**os.environ, **variables},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout.decode()}{done.stderr.decode()}")
    return done.stdout.decode("utf-8", "replace")


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="qkv_install_test_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # Several threads would wait for each other in models this small.
        os.environ.update(QKV_CACHE=str(cls.folder / "cache"), OMP_THREAD_LIMIT="1")
        stage = cls.folder / "stage"
        if BUILD == ROOT / "build" / "release":
            # As under sudo: what has been built.
            run("make", "-C", ROOT, "install", "PREFIX=/opt/qkv", f"DESTDIR={stage}", "SUDO_USER=somebody")
        else:
            run("cmake", "--install", BUILD, "--prefix", "/opt/qkv", DESTDIR=str(stage))
        cls.prefix = stage / "opt" / "qkv"
        cls.lib = Path(CACHE.get("CMAKE_INSTALL_LIBDIR", "lib"))
        run(os.environ["QKV_WRITE_TINY_MODEL"], cls.folder / "model.gguf")
        (cls.folder / "text.txt").write_text(TEXT, encoding="utf-8")

    def test_files(self):
        names = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if not path.is_dir()}
        version = CACHE["CMAKE_PROJECT_VERSION"]
        lib = str(self.lib)
        wanted = {"bin/qkvshare", f"{lib}/libqkvshare.so", f"{lib}/libqkvshare.so.{version}",
                  f"{lib}/pkgconfig/qkvshare.pc", f"{lib}/cmake/qkvshare/qkvshareConfig.cmake",
                  *(f"share/doc/qkvshare/{name}"
                    for name in ("LICENSE", "card_format.md", "policies.md", "profile_format.md")),
                  *(f"include/qkvshare/{name}" for name in ("qkvshare.h", "qkvshare.hpp", "llama.h", "llama.hpp", "status.h",
                                                             "version.h"))}
        if CACHE.get("QKV_LLAMA_DIR"):
            wanted |= {f"{lib}/qkvshare/libllama.so.0", "include/qkvshare/llama.cpp/llama.h",
                       "share/doc/qkvshare/llama.cpp/LICENSE"}
        self.assertLessEqual(wanted, names)
        self.assertEqual([name for name in names if re.search(r"test|\.cc$|\.a$", name)], [])
        self.assertIn(f"qkvshare {version} ", run(self.prefix / "bin/qkvshare", "--version"))

    def test_only_the_c_api_is_exported(self):
        library = self.prefix / self.lib / "libqkvshare.so"
        symbols = {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}
        headers = [self.prefix / "include" / "qkvshare" / name for name in ("qkvshare.h", "llama.h")]
        declared = set(re.findall(r"^QKV_API .*\b(qkv_\w+)\(", "".join(header.read_text() for header in headers), re.M))
        self.assertEqual(symbols, declared)
        self.assertRegex(run("readelf", "-d", library), r"SONAME.*\[libqkvshare\.so\.\d+\.\d+\]")

    @unittest.skipUnless(CACHE.get("QKV_LLAMA_DIR"), "an installed llama.cpp is found by its path")
    @unittest.skipIf(CACHE.get("CMAKE_BUILD_TYPE") == "Debug", "debug information names headers by their path")
    def test_no_path_of_this_machine(self):
        here = [str(ROOT), str(BUILD), CACHE["QKV_LLAMA_DIR"], str(Path(CACHE["QKV_LLAMA_DIR"]).parent), str(self.folder)]
        for path in self.prefix.rglob("*"):
            if path.is_dir():
                continue
            content = path.read_bytes()
            for place in here:
                self.assertNotIn(os.fsencode(place + "/"), content, path)
            if content.startswith(b"\x7fELF"):
                for folders in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", run("readelf", "-d", path)):
                    for folder in folders.split(":"):
                        self.assertTrue(folder.startswith("$ORIGIN"), f"{path}: {folder}")

    def build_example(self, name, prefix, place):
        """The program that is built against the prefix, as users would."""
        shutil.copytree(ROOT / "examples" / name, place / name)
        build = place / f"{name}_build"
        run("cmake", "-S", place / name, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_CXX_COMPILER={CACHE['CMAKE_CXX_COMPILER']}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror")
        run("cmake", "--build", build)
        return build / name

    def check_use(self, prefix, place):
        """Builds the examples against the prefix, and uses them and the program."""
        lib = prefix / self.lib
        handover = self.build_example("handover", prefix, place)
        model, text, card = self.folder / "model.gguf", self.folder / "text.txt", place / "a.card"
        answer = run(handover, model, text, "Where is the cat?", card)
        self.assertEqual(answer, run(handover, model, text, "Where is the cat?", card))

        attend = self.build_example("attend", prefix, place)
        done = subprocess.run([attend, model, card, "Where is the cat?"], capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, rb"\d+ tokens of a card, fused: the self-test passed\n")
        self.assertGreater(len(done.stdout), 1)
        missing = subprocess.run([attend, model, text, "Where?"], capture_output=True, check=False)
        self.assertEqual(missing.returncode, 1)
        self.assertRegex(missing.stderr, rb"error: .+\n\Z")

        flags = run("pkg-config", "--cflags", "--libs", "qkvshare", PKG_CONFIG_PATH=str(lib / "pkgconfig")).split()
        self.assertIn(f"-L{lib}", [os.path.normpath(flag) for flag in flags])
        facts = place / "card_facts"
        run("cc", "-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", place / "handover" / "card_facts.c", *flags,
            f"-Wl,-rpath,{lib}", "-o", facts)
        self.assertRegex(run(facts, card), r"\Acard [0-9a-f]{12} of tiny random model by A\n\d+ tokens, 2 layers of 2 KV ")
        self.assertIn(": valid", run(prefix / "bin" / "qkvshare", "verify", card))
        return handover, answer

    def test_use_and_move(self):
        (self.folder / "first").mkdir()
        (self.folder / "second").mkdir()
        handover, answer = self.check_use(self.prefix, self.folder / "first")
        moved = self.folder / "elsewhere" / "deeper"
        shutil.copytree(self.prefix, moved, symlinks=True)
        gone = self.prefix.rename(self.prefix.with_name("gone"))
        try:
            self.check_use(moved, self.folder / "second")
            # A program that was built before the move.
            again = run(handover, self.folder / "model.gguf", self.folder / "text.txt", "Where is the cat?",
                        self.folder / "b.card", LD_LIBRARY_PATH=str(moved / self.lib))
            self.assertEqual(again, answer)
        finally:
            gone.rename(self.prefix)


if __name__ == "__main__":
    if "QKV_WRITE_TINY_MODEL" not in os.environ:
        print("run this through ctest, which sets QKV_WRITE_TINY_MODEL", file=sys.stderr)
        sys.exit(77)
    if CACHE.get("QKV_SANITIZE"):
        print("instrumented builds are not installed", file=sys.stderr)
        sys.exit(77)
    unittest.main()
