#!/usr/bin/env python3
"""qkvshare eval chain: on a tiny model, whose answers are nonsense, it runs, resumes, refuses and counts."""

import json
import signal
import subprocess
import time

from cli_support import (INTERRUPTED, MISSING, USAGE, CliTest, environment, folder, main, path, setUpModule, words_of)


def write_problems(name, count, what):
    lines = [{"question": f"How many {what} are {i + 1} and 2?", "answer": f"{i + 1} + 2 = <<{i + 1}+2={i + 3}>>{i + 3}\n#### {i + 3}"}
             for i in range(count)]
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def results(name):
    lines = [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
    return lines[0], [line for line in lines[1:] if "produced_by" not in line]


class ChainTest(CliTest):
    def setUp(self):
        write_problems("problems.jsonl", 6, "cats")
        write_problems("examples.jsonl", 5, "dogs")

    def flags(self, output, *more, problems="problems.jsonl", examples="examples.jsonl", count=3, predict=8):
        return ["eval", "chain", "-t", "1", "-m", path("long.gguf"), "--problems", path(problems), "--examples",
                path(examples), "--shots", "1", "--count", count, "--hops", "3", "-n", predict, "-np", "2", "-o",
                path(output), *more]

    def test_arms(self):
        arms = ["f16", "text", "uniform@4", "topology@4", "requantized@4", "cache:q8_0/q4_0"]
        flags = self.flags("arms", *(word for arm in arms for word in ("--arm", arm)))
        report = self.report(*flags, "--markdown", path("arms.md"))
        self.assertEqual([arm["arm"] for arm in report["arms"]], arms)
        for arm in report["arms"]:
            self.assertEqual((arm["problems"], arm["planned"]), (3, 3))
            self.assertEqual([hop["answers"] for hop in arm["hops"]], [3, 3, 3])
            for hop in arm["hops"]:
                self.assertTrue(0 <= hop["accuracy_low"] <= hop["accuracy"] <= hop["accuracy_high"] <= 1)
        bits = {arm["arm"]: arm["total_bits"] for arm in report["arms"]}
        self.assertEqual((bits["f16"], bits["text"], bits["cache:q8_0/q4_0"]), (16, 0, 6.5))
        self.assertTrue(4 < bits["uniform@4"] < 8)
        self.assertEqual(len(report["pairs"]), 5 * 3)
        self.assertEqual({pair["against"] for pair in report["pairs"]}, {"f16"})
        markdown = (folder / "arms.md").read_text(encoding="utf-8")
        self.assertIn("| requantized@4 |", markdown)
        self.assertEqual(sorted(file.name for file in (folder / "arms").iterdir()),
                         ["cache-q8_0-q4_0.jsonl", "f16.jsonl", "requantized@4.jsonl", "text.jsonl",
                          "topology@4.jsonl", "uniform@4.jsonl"])
        header, lines = results("arms/topology@4.jsonl")
        self.assertEqual((header["arm"], header["task"], header["probe"]), ("topology@4", "gsm8k", True))
        self.assertEqual(len(lines), 9)
        # Each problem once at each hop.
        self.assertEqual(len({(line["problem"], line["hop"]) for line in lines}), 9)
        self.assertEqual(len({line["problem"] for line in lines}), 3)
        for line in lines:
            self.assertEqual(line["expected"], int(line["problem"].split("-")[1]) + 2)
            self.assertEqual(line["right"], line["answer"] == line["expected"])
        # Nothing is left to do, and nothing changes; another arm is compared with those that are there.
        before = {file: file.read_bytes() for file in (folder / "arms").iterdir()}
        text = self.succeed(*self.flags("arms", "--arm", "local@4", "--against", "local@4"))
        for word in ("local@4", "Against local@4", "requantized@4", "hop 3"):
            self.assertIn(word, text)
        self.assertEqual({file: file.read_bytes() for file in before}, before)

    def test_an_arm_that_the_model_cannot_do_is_refused_before_others_run(self):
        self.fail_with(USAGE, *self.flags("unfit", "--arm", "f16", "--arm", "uniform@4,layers=99:k=1"),
                       says=("arm uniform@4,layers=99:k=1", "layers"))
        self.assertFalse((folder / "unfit").exists())

    def test_refuses_to_mix(self):
        flags = ["--arm", "f16"]
        self.succeed(*self.flags("mixed", *flags))
        whole = (folder / "mixed" / "f16.jsonl").read_bytes()
        # The same arm of another run, and another arm of another run, before anything is done.
        for arm in ("f16", "uniform@4"):
            self.fail_with(USAGE, *self.flags("mixed", "--seed", "2", "--arm", arm), says=("f16.jsonl", '"input" differs'))
        self.assertEqual((folder / "mixed" / "f16.jsonl").read_bytes(), whole)
        self.assertEqual([file.name for file in (folder / "mixed").iterdir()], ["f16.jsonl"])
        # What an interruption may leave.
        (folder / "mixed" / "uniform@4.jsonl").touch()
        self.assertIn("uniform@4", self.succeed(*self.flags("mixed", *flags, "--arm", "uniform@4")))
        (folder / "mixed" / "other.jsonl").write_text('{"other": 1}\n', encoding="utf-8")
        self.fail_with(USAGE, *self.flags("mixed", *flags), says="other.jsonl")

    def test_goes_on(self):
        flags = self.flags("resumed", "--arm", "uniform@4")
        once = self.report(*flags)
        file = folder / "resumed" / "uniform@4.jsonl"
        _, whole = results("resumed/uniform@4.jsonl")
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        # Of the second group a part was written.
        file.write_text("".join(lines[:9])[:-20], encoding="utf-8")
        self.assertEqual(self.report(*flags), once)
        _, again = results("resumed/uniform@4.jsonl")
        for line in whole + again:
            del line["stages_us"]
        self.assertEqual(again, whole)

    def test_interrupt(self):
        words = words_of(self.flags("stopped", "--arm", "f16", predict=4000, count=6))
        with subprocess.Popen(words, env={**environment}, cwd=folder, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            file = folder / "stopped" / "f16.jsonl"
            deadline = time.monotonic() + 60
            while not file.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            output, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, error)
        self.assertEqual(output, b"")

    def test_errors(self):
        self.fail_with(USAGE, *self.flags("none", "--arm", "best@4"), says=("best", "requantized@BITS"))
        self.fail_with(USAGE, *self.flags("none", "--arm", "f16", "--arm", "f16"), says="twice")
        self.fail_with(USAGE, *self.flags("none", "--arm", "f16", "--against", "text"), says=("text", "--arm"))
        self.fail_with(USAGE, *self.flags("none", count=7), says="only 6 problems")
        self.fail_with(MISSING, *self.flags("none", problems="nothing.jsonl"), says="nothing.jsonl")
        self.fail_with(USAGE, *self.flags("none", examples="doc.txt"), says=("doc.txt", "line 1"))
        self.fail_with(USAGE, "eval", "chain", says="--problems")
        (folder / "taken").touch()
        self.fail_with(MISSING, *self.flags("taken"), says="taken")


if __name__ == "__main__":
    main()
