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


if __name__ == "__main__":
    main()
