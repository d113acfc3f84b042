#!/usr/bin/env python3
"""tools/train_controller.py: finds what is in labels, writes the file that it says, refuses what are no labels."""

import json
import math
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy  # noqa: F401
except ImportError:
    print("NumPy is not installed", file=sys.stderr)
    sys.exit(77)

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "train_controller.py"
INPUTS = ["attention", "variance", "entropy", "rarity", "confidence", "next_entropy", "cost"]
HEADER = {"qkvshare_sensitivity": 1, "model": "m", "model_fingerprint": "ab", "weights": "F32", "level": "K2V2",
          "context": 64, "seed": 1, "input": "cd"}


def labels(prompts=12, tokens=20, seed=1):
    """KL that goes by attention and rarity alone; the closed form knows the first only."""
    source = random.Random(seed)
    lines = []
    for prompt in range(prompts):
        for token in range(tokens):
            line = {"prompt": f"p{prompt}", "token": token, "role": "prompt"}
            line |= {name: math.exp(source.gauss(0, 1)) for name in INPUTS}
            line["level_cost"] = line["cost"] = line["attention"] * 1e-4
            line["kl"] = line["attention"] * line["rarity"] ** 2 * 1e-4
            line["floor"] = 1e-7
            lines.append(line)
    return lines


class TrainTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return str(Path(self.folder.name) / name)

    def write(self, name, lines, **header):
        text = "".join(json.dumps(line) + "\n" for line in [{**HEADER, **header}, *lines])
        Path(self.path(name)).write_text(text, encoding="utf-8")
        return self.path(name)

    def train(self, *flags, code=0):
        done = subprocess.run([sys.executable, str(SCRIPT), *map(str, flags)], capture_output=True, text=True,
                              timeout=300, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def controller(self, *flags):
        text = self.train(*flags, "-o", self.path("c.json"))
        return text, json.loads(Path(self.path("c.json")).read_text(encoding="utf-8"))

    def test_learns_what_the_closed_form_does_not_know(self):
        text, controller = self.controller(self.write("l.jsonl", labels()), "--steps", "1500", "--decay",
                                           "0.001", "--name", "mine")
        self.assertEqual(controller["qkvshare_controller"], 1)
        self.assertEqual(controller["name"], "mine")
        self.assertEqual(controller["inputs"], INPUTS[:6])
        self.assertEqual([len(unit) for unit in controller["hidden"]["weights"]], [6] * 16)
        held_out = controller["held_out"]
        self.assertGreater(held_out["network"]["rank_correlation"], 0.95)
        self.assertLess(held_out["closed_form"]["rank_correlation"], 0.7)
        self.assertLess(held_out["network"]["log_error"], 0.5 * held_out["closed_form"]["log_error"])
        self.assertIn("closed_form", text)
        trained = controller["trained_on"]
        self.assertEqual((trained["prompts"], trained["held_out_prompts"], trained["tokens"]), (9, 3, 180))
        self.assertEqual(trained["labels"][0]["level"], "K2V2")

    def test_the_file_gives_what_training_gave(self):
        lines = labels()
        _, controller = self.controller(self.write("l.jsonl", lines), "--steps", "800", "--inputs", "rarity,cost", "--decay",
                                        "0.001")
        # Inference as docs/policies.md defines it: its order on all lines is that of the labels.
        predicted = []
        for line in lines:
            z = [(math.log(line[name] + offset) - mean) / scale
                 for name, offset, mean, scale in zip(controller["inputs"], controller["offsets"], controller["means"],
                                                      controller["scales"])]
            z = [min(max(x, -4), 4) for x in z]
            hidden = [math.tanh(sum(w * x for w, x in zip(unit, z)) + bias)
                      for unit, bias in zip(controller["hidden"]["weights"], controller["hidden"]["bias"])]
            predicted.append(sum(w * h for w, h in zip(controller["output"]["weights"], hidden))
                             + controller["output"]["bias"])
        errors = [p - math.log(line["kl"]) for p, line in zip(predicted, lines)]
        self.assertLess(sum(abs(error) for error in errors) / len(errors), 0.4)

    def test_is_the_same_every_time(self):
        path = self.write("l.jsonl", labels())
        self.train(path, "--steps", "50", "--name", "n", "-o", self.path("a.json"))
        self.train(path, "--steps", "50", "--name", "n", "-o", self.path("b.json"))
        self.assertEqual(Path(self.path("a.json")).read_bytes(), Path(self.path("b.json")).read_bytes())

    def test_refuses_what_are_no_labels(self):
        good = self.write("l.jsonl", labels())
        out = ["-o", self.path("c.json")]
        self.assertIn("version 2", self.train(self.write("v.jsonl", labels(), qkvshare_sensitivity=2), *out, code=1))
        self.assertIn("no labels", self.train(self.write("e.jsonl", []), *out, code=1))
        lines = labels()
        del lines[3]["rarity"]
        self.assertIn("line 5", self.train(self.write("r.jsonl", lines), *out, code=1))
        lines = labels()
        lines[3]["kl"] = -1
        self.assertIn("line 5", self.train(self.write("n.jsonl", lines), *out, code=1))
        other = self.write("o.jsonl", labels(), level="K4V2")
        self.assertIn("another level", self.train(good, other, *out, code=1))
        self.assertIn("one prompt", self.train(self.write("p.jsonl", labels(prompts=1)), *out, code=1))
        self.assertIn("each once", self.train(good, "--inputs", "rarity,rarity", *out, code=1))
        self.assertIn("one of the inputs", self.train(good, "-o", good, code=1))
        self.assertIn("no such file", self.train(self.path("none"), *out, code=1).lower())
        self.assertFalse(Path(self.path("c.json")).exists())


if __name__ == "__main__":
    unittest.main()
