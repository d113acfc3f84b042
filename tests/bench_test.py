#!/usr/bin/env python3
"""tools/bench.sh measures what it is asked for: a stand-in for the program keeps what it is called with."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "bench.sh"


class BenchTest(unittest.TestCase):
    def calls(self, command, **variables):
        """(model, depths, tests) of each run of eval speed; tests is None where the program chooses."""
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            for folder in ("tools", "docs", "build/release/bin"):
                (root / folder).mkdir(parents=True)
            shutil.copy(SCRIPT, root / "tools")
            for text in ("README.md", "docs/page.md"):
                (root / text).write_text("Text.\n", encoding="utf-8")
            program = root / "build/release/bin/qkvshare"
            program.write_text(f'#!/bin/sh\necho "$*" >>{root}/calls\n', encoding="utf-8")
            program.chmod(0o700)
            environment = {key: value for key, value in os.environ.items() if key != "SPEED_ARGS"}
            subprocess.run(["bash", root / "tools/bench.sh", command], env={**environment, **variables}, check=True,
                           capture_output=True)
            runs = [line.split() for line in (root / "calls").read_text(encoding="utf-8").splitlines()]
        return [self.flags(words) for words in runs if words[:2] == ["eval", "speed"]]

    def flags(self, words):
        def value(flag):
            self.assertLessEqual(words.count(flag), 1, words)
            return words[words.index(flag) + 1] if flag in words else None
        return value("-m"), value("--depth"), value("--tests")

    def test_all(self):
        self.assertEqual(self.calls("speed"), [("qwen2.5-coder-0.5b", "1024,8192", None),
                                               ("qwen2.5-coder-1.5b", "1024,8192", None),
                                               ("qwen2.5-coder-0.5b", "32768", "decode,first-token,memory")])

    def test_chosen_tests(self):
        calls = self.calls("speed", SPEED_ARGS="--tests decode,no-card")
        self.assertEqual([tests for _, _, tests in calls], ["decode,no-card"] * 3)

    def test_other_arguments(self):
        calls = self.calls("speed", SPEED_ARGS="--resume")
        self.assertEqual([tests for _, _, tests in calls], [None, None, "decode,first-token,memory"])

    def test_quick(self):
        self.assertEqual(self.calls("quick"), [("qwen2.5-coder-0.5b", "1024", None)])


if __name__ == "__main__":
    unittest.main()
