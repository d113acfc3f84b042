#!/usr/bin/env python3
"""qkvshare eval hops: on a tiny model, it answers conversations, measures them by every arm, resumes and refuses."""

import json
import shutil

from cli_support import MISSING, USAGE, CliTest, folder, main, path, setUpModule


def write_problems(name, what):
    lines = [{"question": f"How many {what} are {i + 1} and 2?", "answer": f"{i + 1} + 2 = <<{i + 1}+2={i + 3}>>{i + 3}\n#### {i + 3}"}
             for i in range(5)]
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def results(name):
    lines = [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
    return lines[0], [line for line in lines[1:] if "produced_by" not in line]


class HopsTest(CliTest):
    def setUp(self):
        write_problems("problems.jsonl", "cats")
        write_problems("examples.jsonl", "dogs")

    def protocol(self, seed=1):
        return ["-t", "1", "-m", path("long.gguf"), "--problems", path("problems.jsonl"), "--examples",
                path("examples.jsonl"), "--shots", "1", "--count", "3", "--hops", "3", "-n", "8", "-np", "2", "--seed",
                seed]

    def flags(self, output, *arms, conversations="said.jsonl", seed=1):
        return ["eval", "hops", *self.protocol(seed), "--conversations", path(conversations), "-o", path(output),
                *(word for arm in arms for word in ("--arm", arm))]

    def test_arms_and_report(self):
        arms = ["uniform@4", "once@4", "topology@3", "requantized@4", "cache:q8_0/q8_0", "floor"]
        flags = self.flags("hops.jsonl", *arms)
        report = self.report(*flags)
        self.assertEqual(report["hops"], ["hop 1", "hop 2", "hop 3"])
        rows = {(row["arm"], row["kind"]): row for row in report["summary"]["rows"]}
        self.assertEqual(len(rows), len(arms) * 4)
        for arm in arms:
            for kind in report["hops"]:
                self.assertEqual(rows[arm, kind]["prompts"], 3)
                self.assertEqual([other["arm"] for other in rows[arm, kind]["against"]], ["once@4"])
        self.assertEqual(rows["uniform@4", "hop 1"]["mean_kl"]["value"], 0)
        self.assertEqual(rows["uniform@4", "hop 2"]["against"][0]["kl_ratio"]["value"], 1)
        self.assertLess(rows["floor", "hop 3"]["mean_kl"]["value"], rows["once@4", "hop 3"]["mean_kl"]["value"])
        # The conversations are those of eval chain.
        self.succeed("eval", "chain", *self.protocol(), "--arm", "f16", "-o", path("chains"))
        said, again = results("said.jsonl")[1], results("chains/f16.jsonl")[1]
        self.assertEqual([line["tokens"] for line in said], [line["tokens"] for line in again])
        # Nothing is left to do, and nothing changes.
        before = (folder / "hops.jsonl").read_bytes()
        text = self.succeed(*flags)
        for word in ("Mean KL of answers by hop: 3 conversations", "Same top token by hop", "over that of once@4"):
            self.assertIn(word, text)
        self.assertEqual((folder / "hops.jsonl").read_bytes(), before)
        # Another file has the same numbers, and a report takes both.
        self.succeed(*self.flags("exact.jsonl", "exact"))
        self.succeed("report", path("hops.jsonl"), path("exact.jsonl"), "-o", path("hops.html"), "--markdown",
                     path("hops.md"))
        html, markdown = ((folder / name).read_text(encoding="utf-8") for name in ("hops.html", "hops.md"))
        for word in ("KL by hop: ", "<svg class=\"plot\"", "requantized@4, hop 3: KL", "exact"):
            self.assertIn(word, html)
        for word in ("## KL by hop: ", "| exact |", "### Mean KL by hop, over that of once@4"):
            self.assertIn(word, markdown)

    def test_goes_on(self):
        flags = self.flags("resumed.jsonl", "uniform@4", "once@4", conversations="resumed_said.jsonl")
        once = self.report(*flags)
        _, whole = results("resumed.jsonl")
        for name, lines in (("resumed.jsonl", 12), ("resumed_said.jsonl", 9)):
            kept = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)[:lines]
            (folder / name).write_text("".join(kept)[:-20], encoding="utf-8")
        self.assertEqual(self.report(*flags), once)
        self.assertEqual(results("resumed.jsonl")[1], whole)

    def test_the_first_so_many(self):
        self.succeed(*self.flags("all.jsonl", "uniform@4", conversations="some_said.jsonl"))
        self.succeed(*self.flags("some.jsonl", "uniform@4", conversations="some_said.jsonl"), "--first", "2")
        self.assertEqual(results("some.jsonl")[1], results("all.jsonl")[1][:6])
        shutil.copy(path("all.jsonl"), path("copy.jsonl"))
        self.fail_with(USAGE, *self.flags("copy.jsonl", "uniform@4", conversations="some_said.jsonl"), "--first", "2",
                       says="copy.jsonl")

    def test_errors(self):
        self.fail_with(USAGE, *self.flags("none.jsonl", "f16"), says="what all arms are compared with")
        self.fail_with(USAGE, *self.flags("none.jsonl", "best@4"), says=("best", "once@BITS"))
        self.fail_with(USAGE, *self.flags("none.jsonl", "floor", "floor"), says="twice")
        self.fail_with(USAGE, *self.flags("none.jsonl", "floor"), "--against", "exact", says=("exact", "--arm"))
        self.fail_with(USAGE, *self.flags("none.jsonl", "floor"), "--first", "4", says="only 3")
        self.fail_with(USAGE, *self.flags("said2.jsonl", "floor", conversations="said2.jsonl"), says="two names")
        self.fail_with(MISSING, *self.flags("none.jsonl", "floor", conversations="no/folder.jsonl"), says="folder")
        self.fail_with(USAGE, "eval", "hops", says="--problems")
        # Before anything is answered.
        self.fail_with(USAGE, *self.flags("none.jsonl", "floor", "uniform@4,layers=99:k=1", conversations="unfit.jsonl"),
                       says=("arm uniform@4,layers=99:k=1", "layers"))
        self.assertFalse((folder / "unfit.jsonl").exists())
        self.succeed(*self.flags("seed.jsonl", "floor", conversations="seed_said.jsonl"))
        self.fail_with(USAGE, *self.flags("other.jsonl", "floor", conversations="seed_said.jsonl", seed=2),
                       says="seed_said.jsonl")


if __name__ == "__main__":
    main()
