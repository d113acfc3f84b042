#!/usr/bin/env python3
"""qkvshare eval memory: agents that share a context, each case in processes of its own."""

import json
import signal
import subprocess
import time
import unittest
from pathlib import Path

from cli_support import (DOCUMENT, INTERRUPTED, MISSING, USAGE, CliTest, environment, folder, main, path, setUpModule,
                         words_of)

SHAPES, CONTENTS = ("contexts", "sequences", "processes"), ("empty", "F16", "card")
ROW_BYTES = 2 * 2 * 128 * 2  # 2 layers with 2 heads of 64 keys and 64 values in FP16


def flags(*more):
    return ["eval", "memory", "-m", path("long.gguf"), "-t", "1", "-f", path("long.txt"), *more]


@unittest.skipUnless(Path("/proc/self/smaps_rollup").exists(), "needs Linux")
class MemoryTest(CliTest):
    def setUp(self):
        (folder / "long.txt").write_text(DOCUMENT * 8, encoding="utf-8")

    def test_agents_and_hops(self):
        target = folder / "memory.jsonl"
        depth, agents = 4000, 3
        common = flags("--depth", depth, "--agents", f"1,{agents}", "--hops", "1,2", "--hop-tokens", "32", "-o", target)
        report = self.report(*common)
        self.assertEqual(report["context_bytes"], depth * ROW_BYTES)
        lines = report["lines"]
        self.assertEqual([(line["agents"], line["shape"], line["content"]) for line in lines if "agents" in line],
                         [(n, shape, content) for n in (1, agents) for shape in SHAPES for content in CONTENTS])
        self.assertEqual([(line["content"], line["hop"], line["tokens"]) for line in lines if "hop" in line],
                         [("F16", 1, depth), ("F16", 2, depth + 32), ("card", 1, depth), ("card", 2, depth + 32)])
        by_case = {(line["shape"], line["content"], line.get("agents") or line["hop"]): line for line in lines}

        def private(shape, content, number):  # beside the weights
            line = by_case[shape, content, number]
            return line["private_bytes"] - line["model_private_bytes"]

        # Each of them has the rows, or all have them once. An allocator or a sanitizer may take more, not less.
        for shape, times in (("contexts", agents), ("processes", agents), ("sequences", 1)):
            more = private(shape, "F16", agents) - private(shape, "empty", agents)
            self.assertGreater(more, 0.8 * times * report["context_bytes"], shape)
        for shape in ("contexts", "processes"):
            less = private(shape, "F16", agents) - private(shape, "card", agents)
            self.assertGreater(less, 0.6 * agents * report["context_bytes"], shape)
        for line in lines:
            self.assertGreaterEqual(line["peak_private_bytes"], line["model_private_bytes"])
            self.assertGreater(line["shared_bytes"], 0)
            self.assertGreater(line["proportional_bytes"], 0)
            if line["content"] == "F16":
                self.assertGreater(line["taken_bytes"], line["tokens"] * ROW_BYTES)
        card, state = by_case["hop", "card", 2], by_case["hop", "F16", 2]
        self.assertLess(card["taken_bytes"] * 3, state["taken_bytes"])
        self.assertLess(card["handed_bytes"], 32 * ROW_BYTES)
        self.assertGreater(state["handed_bytes"], (depth + 64) * ROW_BYTES)
        written = [json.loads(line) for line in target.read_text().splitlines()]
        self.assertEqual([line for line in written if "shape" in line], lines)
        self.assertEqual(self.report(*common), report)  # all of it is done
        text = self.succeed(*common)
        for word in ("4000 tokens", "sequences", "handed on", "once for all processes"):
            self.assertIn(word, text)
        self.fail_with(USAGE, *common, "--bits", "3", says=("memory.jsonl", '"bits" differs'))
        self.assertEqual(list((folder / "cache" / "bench").glob("run-*")), [])

    def test_wrong_input(self):
        self.fail_with(USAGE, *flags("--agents", "2,2"), says="agents")
        self.fail_with(USAGE, *flags("--agents", "65"), says="--agents")
        self.fail_with(USAGE, *flags("--bits", "1"), says="--bits")
        self.fail_with(MISSING, "eval", "memory", "-m", path("a.gguf"), "-f", path("none.txt"), says="none.txt")
        self.fail_with(USAGE, *flags("-o", path("long.txt")), says="overwritten")

    def test_a_process_without_a_case(self):
        done = subprocess.run(words_of(["eval", "memory-process"]), input=b"{}", env=environment, capture_output=True,
                              timeout=60, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"error: ", done.stderr)

    def test_interrupt(self):
        target = folder / "stopped.jsonl"
        process = subprocess.Popen(words_of(flags("--depth", "2000", "--agents", "1,8", "-o", target)), env=environment,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 120
        while not target.exists() or len(target.read_text().splitlines()) < 11:  # the first group is there
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), INTERRUPTED)
        self.assertEqual(len(target.read_text().splitlines()), 11)
        self.assertEqual(list((folder / "cache" / "bench").glob("run-*")), [])


if __name__ == "__main__":
    main()
