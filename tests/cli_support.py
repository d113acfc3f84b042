"""What the command-line tests share: tiny models, two cards, and ways to run the program.

$QKVSHARE and $QKV_WRITE_TINY_MODEL name the programs. Models are tiny and random; everything happens in a temporary
folder, the cache included. Use: `from cli_support import ...`, setUpModule among them, and end with main().
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

USAGE, REFUSED, MISSING, TOO_LONG, INTERRUPTED = 2, 3, 4, 5, 130  # src/cli/terminal.h
DOCUMENT = (
    "The water of the spring is cold, and it runs in the shade of the trees to the old mill. Nobody grinds corn there "
    "now. The wheel is broken, the roof has holes, and the cat of the farmer sleeps on the mill stone. In the summer "
    "the children of the town swim in the pond, and in the winter they cut holes in the ice and wait for the fish. "
    "The täglich café ends with 12 € and an owl 🦉. On the other side of the water a new mill was built in the year of "
    "the flood. It is made of stone and iron, it has four wheels, and a dozen workers are there from morning to night. "
)
QUESTION = "And who is cutting the ice?"

folder = Path(tempfile.mkdtemp(prefix="qkv_cli_test_"))
atexit.register(shutil.rmtree, folder)
environment = {**os.environ, "QKV_CACHE": str(folder / "cache")}


def setUpModule():
    write_model("a")
    write_model("b", "seed=2")
    write_model("qwen", "architecture=qwen2")
    write_model("long", "context=32768")
    (folder / "doc.txt").write_text(DOCUMENT, encoding="utf-8")
    for bits in ("4", "16"):
        subprocess.run(words_of(["pack", "-f", path("doc.txt"), "--bits", bits, "-o", path(f"doc{bits}.card")]),
                       env=environment, check=True, capture_output=True)


def path(name):
    return str(folder / name)


def write_model(name, *settings):
    subprocess.run([os.environ["QKV_WRITE_TINY_MODEL"], path(f"{name}.gguf"), *settings], check=True)


def words_of(arguments):
    """Adds what tests share: model a, and one thread, since several would wait for each other in models this small."""
    words = [str(word) for word in arguments]
    runs = (["eval", "handoff"], ["eval", "join"], ["eval", "fidelity"], ["agents", "run"])
    if words and (words[0] in ("pack", "run") or words[:2] in runs):
        at = 2 if words[:2] in runs else 1
        words[at:at] = ["-t", "1"] + ([] if "-m" in words else ["-m", path("a.gguf")])
    return [os.environ["QKVSHARE"], *words]


class CliTest(unittest.TestCase):
    maxDiff = None

    def execute(self, *arguments, stdin=b"", **variables):
        return subprocess.run(words_of(arguments), input=stdin, env={**environment, **variables}, cwd=folder,
                              capture_output=True, timeout=300, check=False)

    def succeed(self, *arguments, stdin=b""):
        """Standard output of a run that must succeed."""
        done = self.execute(*arguments, stdin=stdin)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(b"error", done.stderr)
        return done.stdout.decode("utf-8", "replace")

    def report(self, *arguments, stdin=b""):
        return json.loads(self.succeed(*arguments, "--json", stdin=stdin))

    def fail_with(self, code, *arguments, says=(), stdin=b"", **variables):
        """Nothing on standard output, one line on standard error, this exit code, and no file more or less."""
        before = sorted(folder.glob("*"))
        done = self.execute(*arguments, stdin=stdin, **variables)
        error = done.stderr.decode("utf-8", "replace")
        self.assertEqual(done.returncode, code, error)
        self.assertEqual(done.stdout, b"")
        self.assertRegex(error, r"\Aerror: [^\n]+\n\Z")
        for word in [says] if isinstance(says, str) else says:
            self.assertIn(word, error)
        self.assertEqual(sorted(folder.glob("*")), before)


def main():
    if "QKVSHARE" not in os.environ or "QKV_WRITE_TINY_MODEL" not in os.environ:
        print("run this through ctest, which sets QKVSHARE and QKV_WRITE_TINY_MODEL", file=sys.stderr)
        sys.exit(77)
    unittest.main()
