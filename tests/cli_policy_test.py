#!/usr/bin/env python3
"""The policy flags of `pack`, on a tiny random model: what they change, what they report, what they refuse."""

import json
import re

from cli_support import MISSING, USAGE, CliTest, folder, main, path, setUpModule

TEXT = "The cat of the farmer sleeps on the mill stone, and the water runs in the shade of the trees to the pond. " * 4
MESSAGES = [{"role": "system", "content": TEXT}, {"role": "user", "content": "Who sleeps there, and where? " * 6}]


class PolicyTest(CliTest):
    @classmethod
    def setUpClass(cls):
        (folder / "policy.json").write_text(json.dumps(MESSAGES), encoding="utf-8")

    def pack(self, card, *flags):
        return self.report("pack", "--messages", path("policy.json"), "-o", path(card), *flags)

    def refuse(self, says, *flags):
        self.fail_with(USAGE, "pack", "--messages", path("policy.json"), "-o", path("no.card"), *flags, says=says)

    def test_report_says_policy_features_levels_and_protected_tokens(self):
        packed = self.pack("a.card", "--policy", "local", "--bits", "3", "--protect-last", "9")
        self.assertEqual((packed["policy"], packed["features"], packed["protected_tokens"]), ("local", ["attention"], 9))
        self.assertEqual(sum(level["tokens"] for level in packed["levels"]), packed["tokens"])
        info = self.report("info", path("a.card"))
        for key in ("policy", "features", "protected_tokens", "levels"):
            self.assertEqual(info[key], packed[key], key)
        self.assertEqual(info["anchors"], 64)
        text = self.succeed("info", path("a.card"))
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
        packed = self.pack("t.card", *topology, "--anchors-from", path("earlier.card"), "--reader", "B:user", "--reader",
                           "C@3:system", "--alpha", "0.25")
        self.assertEqual(packed["policy"], "topology, alpha 0.25")
        self.assertEqual(packed["features"], ["attention", "prior", "anchors"])
        segments = self.report("info", path("t.card"))["segments"]
        self.assertEqual([segment["readers"] for segment in segments],
                         [[{"agent": "C", "distance": 3}], [{"agent": "B", "distance": 1}]])
        self.refuse("knows nothing of the receivers", *topology)
        self.refuse("no segment of role 'tool'", *topology, "--reader", "B:tool")
        for reader in ("", "@2", "B@0", "B@x", "B@1x"):
            self.refuse("NAME[@DISTANCE]", *topology, "--reader", reader)
        self.pack("blind.card", "-fa", "off")
        self.refuse("has no anchors", *topology, "--anchors-from", path("blind.card"))
        self.succeed("pack", "-p", TEXT, "-o", path("other.card"), "--policy", "local", "--bits", "3")
        self.refuse("of another text", *topology, "--anchors-from", path("other.card"))
        self.succeed("run", "--card", path("other.card"), "-p", "x", "-n", "1", "--temp", "0", "-o", path("next.card"))
        (folder / "other.card").unlink()  # what its anchors would be of
        self.fail_with(MISSING, "pack", "-p", TEXT, "-o", path("no.card"), *topology, "--anchors-from", path("next.card"),
                       says="next.card continues")

    def test_flags_that_the_policy_would_pass_over_are_refused(self):
        self.pack("passed.card", "--policy", "local", "--bits", "3")
        anchors = ["--anchors-from", path("passed.card")]
        refused = {
            "--control-of": (["--control-of", "topology"], ["uniform", "local", "topology"]),
            "--policy-seed": (["--policy-seed", "1"], ["uniform", "local", "topology", "inverted"]),
            "--alpha": (["--alpha", "0.5"], ["uniform", "local", "random", "inverted"]),
            "--anchors-from": (anchors, ["uniform", "local", "random", "inverted"]),
        }
        for name, (flags, policies) in refused.items():
            for policy in policies:
                with self.subTest(flag=name, policy=policy):
                    self.refuse(f"{name} counts in", "--policy", policy, "--bits", "3", *flags)
        control = self.pack("control.card", "--policy", "random", "--bits", "3", "--control-of", "topology", "--alpha",
                            "0.25", "--policy-seed", "1", *anchors)
        self.assertEqual(control["policy"], "random of topology, alpha 0.25, seed 1")

    def test_readers_are_kept_by_every_policy(self):
        for policy in ("uniform", "local"):
            self.pack("kept.card", "--policy", policy, "--bits", "3", "--reader", "B@2:user")
            segments = self.report("info", path("kept.card"))["segments"]
            self.assertEqual([segment.get("readers", []) for segment in segments], [[], [{"agent": "B", "distance": 2}]])

    def test_outputs_are_no_inputs(self):
        self.pack("in.card", "--policy", "local", "--bits", "3")
        self.succeed("calibrate", "-t", "1", "-m", path("a.gguf"), "-n", "64", "-o", path("in.profile"))
        before = {name: (folder / name).read_bytes() for name in ("in.card", "in.profile")}
        topology = ["--policy", "topology", "--bits", "3", "--anchors-from", path("in.card")]
        for flags in ([*topology, "-o", path("in.card")],
                      [*topology, "-o", path("no.card"), "--state-output", path("in.card")],
                      ["--profile", path("in.profile"), "-o", path("no.card"), "--state-output", path("in.profile")]):
            with self.subTest(flags=flags):
                self.fail_with(USAGE, "pack", "-p", TEXT, *flags, says="is an input and would be overwritten")
        self.fail_with(USAGE, "pack", "-p", TEXT, "--profile", path("in.profile"), "-o", path("in.profile"),
                       says="in.profile")
        self.assertEqual(before, {name: (folder / name).read_bytes() for name in before})

    def test_features_of_the_output_layer_have_their_own_stage(self):
        packed = self.pack("f.card", "--policy", "local", "--bits", "3", "--features", "full,-probe,-anchors,-prior")
        self.assertIn("next_entropy", packed["features"])
        self.assertGreater(packed["stages_us"]["predictions"], 0)
        self.assertNotIn("predictions", self.pack("g.card", "--policy", "local", "--bits", "3")["stages_us"])

    def test_levels_are_the_only_ones_chosen(self):
        packed = self.pack("l.card", "--policy", "local", "--bits", "5", "--levels", "K8V4,K4V4")
        self.assertEqual({(level["key_bits"], level["value_bits"]) for level in packed["levels"]},
                         {(4, 4), (8, 4), (16, 16)})

    def test_the_sizes_that_leave_no_choice_are_said(self):
        def sizes(flag, given, *more):
            done = self.execute("pack", "--messages", path("policy.json"), "-o", path("no.card"), "--policy", "local",
                                flag, given, *more)
            self.assertEqual(done.returncode, USAGE, done.stderr)
            text = done.stderr.decode()
            found = re.search(r"give at least (\S+) and less than (\S+) bits|give (\d+) to (\d+) bytes", text)
            self.assertTrue(found, text)
            return [float(number) for number in found.groups() if number]

        for more in ([], ["--levels", "K4V4,K8V4,exact"], ["--layer-bits", "0:k=1"], ["--protect-last", "50"]):
            with self.subTest(flags=more):
                least, limit = sizes("--bits", "15.99", *more)
                self.assertGreater(limit, 15)
                self.assertEqual(sizes("--bits", str(limit), *more), [least, limit])
                self.assertEqual(sizes("--bits", f"{least - 0.002:.3f}", *more), [least, limit])
                for bits in (least, limit - 0.001):
                    packed = self.pack("choice.card", "--policy", "local", "--bits", f"{bits:.3f}", *more)
                    self.assertGreater(len(packed["levels"]), 1)
                most = packed["f16_bytes"] * 2
                least, limit = (int(size) for size in sizes("--max-bytes", str(most), *more))
                self.assertEqual(sizes("--max-bytes", str(limit + 1), *more), [least, limit])
                self.assertEqual(sizes("--max-bytes", str(least - 1), *more), [least, limit])
                for size in (least, limit):
                    self.assertLessEqual(self.pack("choice.card", "--policy", "local", "--max-bytes", str(size),
                                                   *more)["file_bytes"], size)

    def test_what_cannot_be_is_refused(self):
        self.refuse("unknown policy 'best'", "--policy", "best")
        self.refuse("unknown level 'K3V3'; choose from K2V2, K4V2", "--levels", "K4V4,K3V3")
        self.refuse("each side of a layer once", "--layer-bits", "0:k=1,k=2")
        self.refuse("unknown feature 'mood'", "--policy", "local", "--features", "mood")
        self.refuse("looks at no features", "--features", "rarity")
        self.refuse("more than 2 and less than 16", "--policy", "local", "--bits", "2")
        self.refuse("choose from 2 to 16", "--bits", "1.5")
        self.refuse("no control of uniform", "--policy", "random", "--bits", "3", "--control-of", "uniform")
        self.refuse("alpha", "--policy", "topology", "--alpha", "2")
        self.refuse("stay exact", "--policy", "local", "--bits", "3", "--protect-last", "100000")
        self.refuse("feature anchors", "--policy", "topology", "--bits", "3", "--reader", "B", "--features", "anchors")


if __name__ == "__main__":
    main()
