#!/usr/bin/env python3
"""qkvshare eval ttft: on a tiny model, whose times mean nothing, it measures every way with its stages."""

import json
import signal
import subprocess
import time

from cli_support import (DOCUMENT, INTERRUPTED, MISSING, TOO_LONG, USAGE, CliTest, environment, folder, main, path, setUpModule,
                         words_of, write_model)

WAYS = ["sender", "re-prefill", "F16 state", "Q8_0 state", "Q4_0 state", "card restored", "card attached"]
STAGES = {
    "sender": ["context", "prefill", "take rows", "statistics", "allocate", "quantize", "write"],
    "re-prefill": ["context", "prefill", "suffix prefill", "first token"],
    "F16 state": ["context", "read and inject", "suffix prefill", "first token"],
    "card restored": ["context", "open and verify", "dequantize", "inject", "suffix prefill", "first token"],
    "card attached": ["context", "open and verify", "attach", "suffix prefill", "first token"],
}


def flags(*more, model="a.gguf"):
    return ["eval", "ttft", "-m", path(model), "-t", "1", "-f", path("long.txt"), *more]


class TtftTest(CliTest):
    def setUp(self):
        (folder / "long.txt").write_text(DOCUMENT * 2, encoding="utf-8")

    def check_times(self, line):
        for time_of in [line["total"], *line["stages"].values()]:
            self.assertTrue(0 <= time_of["least_us"] <= time_of["median_us"] <= time_of["most_us"])
        self.assertGreater(line["total"]["least_us"], 0)
        if line["runs"] == 1:
            self.assertEqual(line["total"]["median_us"], sum(t["median_us"] for t in line["stages"].values()))

    def test_ways_and_stages(self):
        target = folder / "ttft.jsonl"
        common = flags("--depth", "80,200", "--repeats", "1", "--suffix", "16")
        report = self.report(*common, "--bits", "16", "-o", target)
        self.assertEqual([(line["depth"], line["way"]) for line in report["lines"]],
                         [(depth, way) for depth in (80, 200) for way in WAYS])
        for line in report["lines"]:
            self.check_times(line)
            self.assertEqual(line["runs"], 1)
            if line["way"] in STAGES:
                self.assertEqual(list(line["stages"]), STAGES[line["way"]])
        for depth in (80, 200):
            by_way = {line["way"]: line for line in report["lines"] if line["depth"] == depth}
            # 2 layers with 2 heads of 64 keys and 64 values: 1,024 bytes a token in F16, and what says which token.
            rows = depth * 1024
            self.assertTrue(rows < by_way["F16 state"]["bytes"] < rows + depth * 64 + 1024)
            self.assertTrue(rows * 0.53 < by_way["Q8_0 state"]["bytes"] < by_way["F16 state"]["bytes"] * 0.6)
            self.assertLess(by_way["Q4_0 state"]["bytes"], by_way["Q8_0 state"]["bytes"])
            self.assertEqual(by_way["card restored"]["bytes"], by_way["sender"]["bytes"])
            # Exact rows, the same calls: the same first token. The text is as long as its tokens.
            exact = {by_way[way]["first_token"] for way in ("re-prefill", "F16 state", "card restored", "card attached")}
            self.assertEqual(len(exact), 1)
            self.assertEqual(by_way["re-prefill"]["speedup"], 1)
            for way in WAYS[2:]:
                ratio = by_way["re-prefill"]["total"]["median_us"] / by_way[way]["total"]["median_us"]
                self.assertAlmostEqual(by_way[way]["speedup"], ratio, delta=1e-6 * ratio)
                self.assertEqual("write" in by_way[way], way.endswith("state"))
        self.assertEqual(report["files"], "in the page cache")
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        self.assertEqual([line for line in lines if "way" in line], report["lines"])
        self.assertEqual(lines[0], {key: value for key, value in report.items() if key != "lines"})
        before = target.read_bytes()
        self.assertEqual(self.report(*common, "--bits", "16", "-o", target), report)  # all of it is done
        self.assertEqual(target.read_bytes(), before)
        text = self.succeed(*common, "--bits", "16", "-o", target)
        for word in ("80 tokens: card", "page cache", "card attached", "open and verify", "writing the file", "1.0x"):
            self.assertIn(word, text)
        self.fail_with(USAGE, *common, "-o", target, says=("ttft.jsonl", '"pack" differs'))
        self.assertEqual(list((folder / "cache" / "ttft").glob("*")), [])  # nothing is left

    def test_goes_on_with_the_depths_that_lack(self):
        target = folder / "part.jsonl"
        common = flags("--depth", "80,96", "--repeats", "2", "--policy", "local", "--bits", "5", "-o", target)
        whole = self.report(*common)
        self.assertEqual({line["runs"] for line in whole["lines"]}, {2})
        lines = target.read_text().splitlines(keepends=True)
        target.write_text("".join(lines[:-1]))  # half a depth: it is measured again
        again = self.report(*common)
        self.assertEqual(again["lines"][:7], whole["lines"][:7])
        self.assertEqual([line["way"] for line in again["lines"][7:]], WAYS)
        self.assertEqual(len(target.read_text().splitlines()), len(lines))

    def test_policies_as_pack_has_them(self):
        report = self.report(*flags("--depth", "80", "--repeats", "1", "--policy", "topology", "--bits", "5", "--features",
                                    "full", "--reader", "B@2"))
        self.assertEqual(report["readers"], ["B@2"])
        sender = report["lines"][0]
        self.assertIn("predictions", sender["stages"])
        self.assertAlmostEqual(sender["code_bits"], (76 * 5 + 4 * 16) / 80, delta=0.02)  # the first 4 are exact
        self.fail_with(USAGE, *flags("--depth", "80", "--policy", "local", "--bits", "16"), says="local")
        self.fail_with(USAGE, *flags("--depth", "80", "--layer-bits", "7:k=1"), says="layer")

    def test_heads_of_no_quantized_cache(self):
        write_model("wide", "key_dim=80")
        report = self.report(*flags("--depth", "80", "--repeats", "1", model="wide.gguf"))
        self.assertEqual([line["way"] for line in report["lines"]],
                         [way for way in WAYS if not way.startswith("Q")])
        self.assertEqual(set(report["left_out"]), {"Q8_0 state", "Q4_0 state"})

    def test_wrong_input(self):
        self.fail_with(USAGE, *flags("--depth", "80,80"), says="twice")
        self.fail_with(TOO_LONG, *flags("--depth", "1000000"), says="the model was trained for")
        self.fail_with(USAGE, *flags("--depth", "8"), says="--depth")
        self.fail_with(MISSING, "eval", "ttft", "-m", path("a.gguf"), "-f", path("none.txt"), says="none.txt")
        self.fail_with(USAGE, *flags("--depth", "80", "-o", path("long.txt")), says="overwritten")
        (folder / "other.txt").write_text("something else")
        self.fail_with(USAGE, *flags("--depth", "80", "-o", path("other.txt")), says="other.txt")
        (folder / "empty.txt").write_text("")
        self.fail_with(USAGE, "eval", "ttft", "-m", path("a.gguf"), "-f", path("empty.txt"), "--depth", "80",
                       says="no text")

    def test_interrupt(self):
        target = folder / "stopped.jsonl"
        process = subprocess.Popen(words_of(flags("--depth", "80,16000", "-o", target, model="long.gguf")),
                                   env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 120
        while not target.exists() or len(target.read_text().splitlines()) < 9:  # the first depth is there
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), INTERRUPTED)
        self.assertEqual(len(target.read_text().splitlines()), 9)
        self.assertEqual(list((folder / "cache" / "ttft").glob("*")), [])


if __name__ == "__main__":
    main()
