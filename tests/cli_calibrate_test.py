#!/usr/bin/env python3
"""qkvshare calibrate, and packing with its profiles."""

import os

from cli_support import DOCUMENT, MISSING, REFUSED, USAGE, CliTest, folder, main, path, setUpModule  # noqa: F401


class CalibrateTest(CliTest):
    def calibrate(self, name, *flags):
        report = self.report("calibrate", "-t", "1", "-m", path("a.gguf"), "-o", path(name), *flags)
        self.assertEqual(report["profile"], path(name))
        self.assertEqual(os.stat(path(name)).st_mode & 0o777, 0o600)
        return report

    def test_a_profile_of_own_text_depends_on_the_seed_only(self):
        first = self.calibrate("a.profile", "-n", "200")
        self.assertGreaterEqual(first["tokens"], 190)
        self.assertLessEqual(first["tokens"], 200)
        self.assertEqual(self.calibrate("b.profile", "-n", "200")["id"], first["id"])
        self.assertNotEqual(self.calibrate("b.profile", "-n", "200", "-s", "2")["id"], first["id"])

    def test_a_profile_of_files(self):
        report = self.calibrate("f.profile", "-f", path("doc.txt"), "-f", path("doc.txt"))
        tokens = self.report("info", path("doc4.card"))["tokens"]
        self.assertEqual(report["tokens"], 2 * tokens)
        self.assertEqual(self.calibrate("f.profile", "-f", path("doc.txt"), "-n", "100")["tokens"], 100)

    def test_cards_embed_and_name_the_profile(self):
        profile = self.calibrate("c.profile", "-f", path("doc.txt"))
        packed = self.report("pack", "-p", DOCUMENT, "--profile", path("c.profile"), "-o", path("static.card"))
        self.assertEqual(packed["profile"], "static " + profile["id"])
        self.assertEqual(self.report("info", path("static.card"))["profile"], packed["profile"])
        self.assertIn("profile      static", self.succeed("info", path("static.card")))
        self.assertEqual(self.report("info", path("doc4.card"))["profile"], "measured")
        # The card needs nothing else: the profile may be gone.
        os.remove(path("c.profile"))
        run = self.report("run", "--card", path("static.card"), "-p", " And then", "-n", "2", "--temp", "0")
        self.assertEqual(run["mode"], "fused")

    def test_what_cannot_be_is_refused(self):
        self.calibrate("d.profile", "-f", path("doc.txt"))
        pack = ["pack", "-p", DOCUMENT, "-o", path("no.card"), "--profile"]
        self.fail_with(REFUSED, *pack, path("d.profile"), "-m", path("b.gguf"), says="of another model")
        self.fail_with(REFUSED, *pack, path("d.profile"), "--rope-freq-base", "5000", says="of another RoPE")
        self.fail_with(REFUSED, *pack, path("doc4.card"), says="(rule P2)")
        self.fail_with(MISSING, *pack, path("missing.profile"), says="missing.profile")
        calibrate = ["calibrate", "-t", "1", "-m", path("a.gguf"), "-o", path("no.profile")]
        (folder / "short.txt").write_text("Too short.", encoding="utf-8")
        self.fail_with(USAGE, *calibrate, "-f", path("short.txt"), says="are too few")
        self.fail_with(MISSING, *calibrate, "-f", path("missing.txt"), says="missing.txt")
        self.fail_with(USAGE, *calibrate, "-n", "10", says="10")
        self.fail_with(USAGE, *calibrate, "-f", path("doc4.card"), says="not UTF-8")
        self.fail_with(USAGE, "calibrate", "-m", path("a.gguf"), says="--output")
        # Nothing but a profile is written over.
        self.fail_with(USAGE, "calibrate", "-t", "1", "-m", path("a.gguf"), "-o", path("doc.txt"), says="doc.txt")


class LayerBitsTest(CliTest):
    def test_layers_are_adjusted(self):
        flags = ["pack", "-p", DOCUMENT, "-o", path("layers.card")]
        self.report(*flags, "--layer-bits", "0:k=1;1:v=-1,k=-1")
        details = self.report("info", path("layers.card"))["layer_details"]
        self.assertEqual([(d["key_adjustment"], d["value_adjustment"]) for d in details], [(1, 0), (-1, -1)])
        self.assertIn("2 layers have other widths", self.succeed("info", path("layers.card")))
        self.report(*flags, "--layer-bits", "0-1:v=1")
        details = self.report("info", path("layers.card"))["layer_details"]
        self.assertEqual([d["value_adjustment"] for d in details], [1, 1])
        run = self.report("run", "--card", path("layers.card"), "-p", " And then", "-n", "2", "--temp", "0")
        self.assertEqual(run["mode"], "fused")

    def test_wrong_layers_are_refused(self):
        for spec in ("2:k=1", "1-0:k=1", "0", "0:", "0:x=1", "0:k", "0:k=4", "0:k=1,", "a:k=1", "0:k=1;", "-1:k=1"):
            with self.subTest(spec=spec):
                self.fail_with(USAGE, "pack", "-p", DOCUMENT, "-o", path("no.card"), "--layer-bits", spec,
                               says="layers 0 to 1")


if __name__ == "__main__":
    main()
