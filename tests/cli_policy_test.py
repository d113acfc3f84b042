#!/usr/bin/env python3
"""The policy flags of `pack`, on a tiny random model: what they change, what they report, what they refuse."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

USAGE = 2  # src/cli/terminal.h
TEXT = "The cat of the farmer sleeps on the mill stone, and the water runs in the shade of the trees to the pond. " * 4
MESSAGES = [{"role": "system", "content": TEXT}, {"role": "user", "content": "Who sleeps there, and where? " * 6}]


class PolicyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="qkv_cli_policy_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.environment = {**os.environ, "QKV_CACHE": str(cls.folder / "cache")}
        subprocess.run([os.environ["QKV_WRITE_TINY_MODEL"], str(cls.folder / "m.gguf")], check=True)
        (cls.folder / "messages.json").write_text(json.dumps(MESSAGES), encoding="utf-8")

    def execute(self, *arguments):
        return subprocess.run([os.environ["QKVSHARE"], *arguments], env=self.environment, cwd=self.folder,
                              capture_output=True, text=True, timeout=300, check=False)

    def pack(self, card, *flags):
        done = self.execute("pack", "-t", "1", "-m", "m.gguf", "--messages", "messages.json", "-o", card, "--json", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refuse(self, says, *flags):
        done = self.execute("pack", "-t", "1", "-m", "m.gguf", "--messages", "messages.json", "-o", "no.card", *flags)
        self.assertEqual((done.returncode, done.stdout), (USAGE, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")
        self.assertIn(says, done.stderr)
        self.assertFalse((self.folder / "no.card").exists())

    def test_report_says_policy_features_levels_and_protected_tokens(self):
        packed = self.pack("a.card", "--policy", "local", "--bits", "3", "--protect-last", "9")
        self.assertEqual((packed["policy"], packed["features"], packed["protected_tokens"]), ("local", ["attention"], 9))
        self.assertEqual(sum(level["tokens"] for level in packed["levels"]), packed["tokens"])
        info = json.loads(self.execute("info", "a.card", "--json").stdout)
        for key in ("policy", "features", "protected_tokens", "levels"):
            self.assertEqual(info[key], packed[key], key)
        self.assertEqual(info["anchors"], 64)
        text = self.execute("info", "a.card").stdout
        self.assertIn("attention", text)
        self.assertIn("last 9 tokens", text)

    def test_controls_have_the_levels_of_their_policy(self):
        local = self.pack("local.card", "--policy", "local", "--bits", "3")
        for flags in (["random", "--policy-seed", "7"], ["inverted"]):
            control = self.pack("control.card", "--bits", "3", "--policy", *flags)
            self.assertEqual(control["levels"], local["levels"])
            self.assertNotEqual(control["content_id"], local["content_id"])
            self.assertIn("of local", control["policy"])

    def test_topology_takes_readers_and_anchors(self):
        self.pack("earlier.card", "--policy", "local", "--bits", "3")
        topology = ["--policy", "topology", "--bits", "3"]
        packed = self.pack("t.card", *topology, "--anchors-from", "earlier.card", "--reader", "B:user", "--reader",
                           "C@3:system", "--alpha", "0.25")
        self.assertEqual(packed["policy"], "topology, alpha 0.25")
        self.assertEqual(packed["features"], ["attention", "prior", "anchors"])
        segments = json.loads(self.execute("info", "t.card", "--json").stdout)["segments"]
        self.assertEqual([segment["readers"] for segment in segments],
                         [[{"agent": "C", "distance": 3}], [{"agent": "B", "distance": 1}]])
        self.refuse("knows nothing of the receivers", *topology)
        self.refuse("no segment of role 'tool'", *topology, "--reader", "B:tool")
        for reader in ("", "@2", "B@0", "B@x", "B@1x"):
            self.refuse("NAME[@DISTANCE]", *topology, "--reader", reader)
        self.pack("uniform.card")
        self.refuse("has no anchors", *topology, "--anchors-from", "uniform.card")
        done = self.execute("pack", "-t", "1", "-m", "m.gguf", "-p", TEXT, "-o", "other.card", "--policy", "local",
                            "--bits", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.refuse("of another text", *topology, "--anchors-from", "other.card")
        self.refuse("policy topology only", "--policy", "local", "--bits", "3", "--anchors-from", "earlier.card")

    def test_features_of_the_output_layer_have_their_own_stage(self):
        packed = self.pack("f.card", "--policy", "local", "--bits", "3", "--features", "full,-probe,-anchors,-prior")
        self.assertIn("next_entropy", packed["features"])
        self.assertGreater(packed["stages_us"]["predictions"], 0)
        self.assertNotIn("predictions", self.pack("g.card", "--policy", "local", "--bits", "3")["stages_us"])

    def test_levels_are_the_only_ones_chosen(self):
        packed = self.pack("l.card", "--policy", "local", "--bits", "5", "--levels", "K8V4,K4V4")
        self.assertEqual({(level["key_bits"], level["value_bits"]) for level in packed["levels"]},
                         {(4, 4), (8, 4), (16, 16)})

    def test_what_cannot_be_is_refused(self):
        self.refuse("unknown policy 'best'", "--policy", "best")
        self.refuse("unknown level 'K3V3'; choose from K2V2, K4V2", "--levels", "K4V4,K3V3")
        self.refuse("unknown feature 'mood'", "--policy", "local", "--features", "mood")
        self.refuse("looks at no features", "--features", "rarity")
        self.refuse("more than 2 and less than 16", "--policy", "local", "--bits", "2")
        self.refuse("choose from 2 to 16", "--bits", "1.5")
        self.refuse("no control of uniform", "--policy", "random", "--bits", "3", "--control-of", "uniform")
        self.refuse("alpha", "--policy", "topology", "--alpha", "2")
        self.refuse("stay exact", "--policy", "local", "--bits", "3", "--protect-last", "100000")
        self.refuse("feature anchors", "--policy", "topology", "--bits", "3", "--reader", "B", "--features", "anchors")


if __name__ == "__main__":
    unittest.main(verbosity=0)
