#!/usr/bin/env python3
"""qkvshare eval."""

from cli_support import QUESTION, CliTest, folder, main, path, setUpModule


class EvalTest(CliTest):
    def test_handoff(self):
        flags = ["--bits", "16", "-f", path("doc.txt"), "-o", path("e.card"), "--state-output", path("e.state")]
        self.succeed("pack", *flags)
        common = ["eval", "handoff", "--card", path("e.card"), "--state", path("e.state"), "-q", QUESTION, "-n", "6"]
        report = self.report(*common, "-q", "Why?")
        self.assertEqual([q["question"] for q in report["questions"]], [QUESTION, "Why?"])
        for question in report["questions"]:
            self.assertEqual([arm["name"] for arm in question["arms"]], ["re-prefill", "F16 state", "card restored", "card fused"])
            for arm in question["arms"]:
                self.assertEqual(arm["ttft_us"], sum(arm["stages_us"].values()))
            self.assertEqual(question["arms"][1]["answer"], question["arms"][2]["answer"])
        self.assertEqual(report["card_vs_f16"]["max_kl"], 0)  # exact rows, the same pieces
        self.assertEqual(report["card_vs_f16"]["top1_agreement"], 1)
        self.assertLess(report["fused_vs_f16"]["max_kl"], 1e-3)  # the same but for rounding
        text = self.succeed(*common)
        for word in ("re-prefill", "F16 state", "card fused", "noise floor", QUESTION):
            self.assertIn(word, text)
        (folder / "answer.txt").write_text("The children are cutting the ice.", encoding="utf-8")
        more = self.report(*common, "--known-answer", "Who?", path("answer.txt"))
        self.assertEqual(len(more["questions"]), 1)
        self.assertGreater(more["card_vs_f16"]["tokens"], self.report(*common)["card_vs_f16"]["tokens"] + 10)

    def test_join(self):
        lines = ["The mill is old.\n", "The pond is deep, and the fish in it are old too.\n", "Nobody grinds corn.\n"]
        (folder / "report.txt").write_text("".join(lines), encoding="utf-8")
        for line, name in zip(lines, ("one.txt", "two.txt", "three.txt")):
            (folder / name).write_text(line, encoding="utf-8")
        common = ["eval", "join", "-p", QUESTION, "-n", "6", "--bits", "8"]
        files = [flag for name in ("one.txt", "two.txt", "three.txt") for flag in ("-f", path(name))]
        by_file = self.report(*common, *files)
        self.assertEqual(len(by_file["card_tokens"]), 3)
        names = [way["name"] for way in by_file["ways"]]
        self.assertEqual(names[0], "noise floor")
        self.assertIn("joined, fused", names)
        self.assertIn("joined exact, restore", names)
        by_piece = self.report(*common, "-f", path("report.txt"), "--pieces", "3")
        self.assertEqual(by_piece, by_file)
        two = self.report(*common, *files, "-p", "Why?")
        self.assertEqual(two["answers"][0], by_file["answers"][0])
        self.assertEqual(len(two["ways"][1]["texts"]), 2)
        chat = self.report(*common, *files, "--chat", "--inject", "restore")
        self.assertGreater(chat["card_tokens"][0], by_file["card_tokens"][0])
        self.assertNotIn("joined, fused", [way["name"] for way in chat["ways"]])
        text = self.succeed(*common, *files)
        for word in ("3 documents", "noise floor", "joined exact, fused", "joined: fused/restore", "Q: " + QUESTION):
            self.assertIn(word, text)
        self.fail_with(2, *common, "-f", path("one.txt"), "--pieces", "3", says="not enough lines")
        self.fail_with(2, *common, *files, "--pieces", "3", says="give one -f")
        self.fail_with(2, *common, *files, "-ctk", "q8_0", says="leave out -ctk")
        self.fail_with(4, *common, "-f", path("none.txt"), says="none.txt")


if __name__ == "__main__":
    main()
