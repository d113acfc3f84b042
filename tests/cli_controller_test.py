#!/usr/bin/env python3
"""qkvshare eval sensitivity, and policy learned in `pack` and in arms of evaluations, on a tiny random model."""

import json
import subprocess
import sys
from pathlib import Path

from cli_support import DOCUMENT, MISSING, REFUSED, USAGE, CliTest, folder, main, path, setUpModule

ROOT = Path(__file__).resolve().parent.parent
BUILT_IN = json.loads((ROOT / "data/controllers/gsm8k.json").read_text(encoding="utf-8"))
FEATURES = ["attention", "variance", "entropy", "rarity", "confidence", "next_entropy"]


def write_problems(count=6):
    words = DOCUMENT.split()
    lines = [{"question": " ".join(words[i * 9:i * 9 + 20]) + "?", "answer": f"{i} + 1 = <<{i}+1={i + 1}>>{i + 1}\n#### {i + 1}"}
             for i in range(count)]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path("train.jsonl")


class ControllerTest(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.sensitivity = ["eval", "sensitivity", "-t", "1", "-m", path("a.gguf"), "--data", write_problems(), "--prompts",
                           "3", "--tokens", "4", "--context", "200"]

    def pack(self, card, *flags):
        return self.report("pack", "-f", path("doc.txt"), "--bits", "3", "-o", path(card), *flags)

    def refuse(self, says, *flags, code=USAGE):
        self.fail_with(code, "pack", "-f", path("doc.txt"), "--bits", "3", "-o", path("no.card"), *flags, says=says)

    def test_sensitivity(self):
        flags = [*self.sensitivity, "-o", path("labels.jsonl")]
        report = self.report(*flags)
        self.assertEqual((report["prompts"], report["tokens"], report["level"]), (3, 12, "K2V2"))
        self.assertEqual(set(report["rank_correlation"]), {*FEATURES, "cost", "closed form at the level"})
        self.assertGreater(report["mean_kl"], 0)
        whole = (folder / "labels.jsonl").read_bytes()
        lines = [json.loads(line) for line in whole.splitlines()]
        self.assertEqual(lines[0]["qkvshare_sensitivity"], 1)
        self.assertEqual((lines[0]["context"], lines[0]["tokens"]), (200, 4))
        labels = [line for line in lines[1:] if "produced_by" not in line]
        self.assertEqual(len(labels), 12)
        for label in labels:
            self.assertTrue({*FEATURES, "cost", "level_cost", "kl", "floor", "token", "role"} <= set(label))
        # It goes on prompt by prompt.
        (folder / "labels.jsonl").write_bytes(whole[:whole.rindex(b'{"prompt"')])
        self.assertEqual(self.report(*flags), report)
        self.assertEqual((folder / "labels.jsonl").read_bytes(), whole)
        self.assertIn("rank correlation", self.succeed(*flags))
        done = self.execute(*flags, "--level", "K4V2")
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"use one with F32 weights", done.stderr)  # those of the tiny model are F16
        self.assertIn(b'"level" differs', done.stderr)
        self.fail_with(USAGE, *self.sensitivity, "--level", "exact", says="not exact")
        self.fail_with(USAGE, *self.sensitivity, "-o", path("train.jsonl"), says="train.jsonl")
        self.fail_with(MISSING, "eval", "sensitivity", "-m", path("a.gguf"), "--data", path("none.jsonl"), says="none.jsonl")

    def test_labels_train_a_controller_that_pack_takes(self):
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("NumPy is not installed")
        self.succeed(*self.sensitivity, "-o", path("more.jsonl"))
        subprocess.run([sys.executable, str(ROOT / "tools/train_controller.py"), path("more.jsonl"), "--inputs",
                        "attention,rarity,cost", "--steps", "50", "--name", "tiny", "-o", path("tiny.json")], check=True,
                       capture_output=True, timeout=300)
        packed = self.pack("tiny.card", "--policy", "learned", "--controller", path("tiny.json"))
        self.assertEqual((packed["policy"], packed["features"]), ("learned by tiny", ["attention", "rarity"]))
        self.assertNotIn("predictions", packed["stages_us"])

    def test_pack(self):
        local = self.pack("local.card", "--policy", "local")
        learned = self.pack("learned.card", "--policy", "learned")
        self.assertEqual(learned["policy"], "learned by gsm8k")
        used = {"attention" if name == "cost" else name for name in BUILT_IN["inputs"]}
        self.assertEqual(learned["features"], [name for name in FEATURES if name in used])
        self.assertNotEqual(learned["content_id"], local["content_id"])
        control = self.pack("control.card", "--policy", "random", "--control-of", "learned")
        self.assertEqual(control["policy"], "random of learned by gsm8k, seed 1")
        self.assertEqual(control["levels"], learned["levels"])

    def test_refusals(self):
        self.refuse("there is no controller 'none': give a file, or one of gsm8k", "--policy", "learned", "--controller",
                    "none", code=MISSING)
        self.refuse("choose another policy than local", "--policy", "local", "--controller", "gsm8k")
        self.refuse("leave them out", "--policy", "learned", "--features", "rarity")
        for name, text, says in (("a.json", "{}", "no JSON"), ("b.json", "x", "no JSON"),
                                 ("c.json", json.dumps({**BUILT_IN, "scales": [1]}), "scales has 1 numbers"),
                                 ("d.json", json.dumps({**BUILT_IN, "qkvshare_controller": 9}), "version 9")):
            (folder / name).write_text(text, encoding="utf-8")
            self.refuse([name, says], "--policy", "learned", "--controller", path(name), code=REFUSED)

    def test_arms(self):
        prompts = [{"context": DOCUMENT[:400], "turns": [{"turn": "And who?", "answer": " The cat."}]}]
        (folder / "p.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts), encoding="utf-8")
        report = self.report("eval", "fidelity", "--set", path("p.jsonl"), "--arm", "learned@3", "--arm",
                             "random@3,control_of=learned", "--arm", "local@3", "-o", path("f.jsonl"))
        rows = {row["arm"]: row for row in report["summary"]["rows"]}
        self.assertEqual(rows["learned@3"]["code_bits"], rows["random@3,control_of=learned"]["code_bits"])
        header = json.loads((folder / "f.jsonl").read_text(encoding="utf-8").splitlines()[0])
        self.assertEqual(["controller" in arm for arm in header["arms"]], [True, True, False])


if __name__ == "__main__":
    main()
