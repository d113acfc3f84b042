#!/usr/bin/env python3
"""qkvshare pack: what it reads, what it reports and writes."""

import json
import os

from cli_support import DOCUMENT, QUESTION, USAGE, CliTest, folder, main, path, setUpModule, write_model


class PackTest(CliTest):
    def test_outputs_overwrite_nothing_else(self):
        pack = ["pack", "-p", DOCUMENT, "-o"]
        self.fail_with(USAGE, *pack, path("o.card"), "--state-output", path("doc.txt"), says="not a state of llama.cpp")
        self.fail_with(USAGE, *pack, path("o.card"), "--state-output", path("doc4.card"), says="not a state")
        self.fail_with(USAGE, *pack, path("o.card"), "--state-output", f"{folder}/./o.card", says="the same file")
        self.fail_with(USAGE, *pack, "-", says="- is not one")

    def test_numbers_are_whole_and_in_range(self):
        for flag in ("--protect-last", "--policy-seed", "--max-bytes"):
            for value in ("-1", "", "1.5", "abc", "99999999999999999999999"):
                self.fail_with(USAGE, "pack", "-p", DOCUMENT, "-o", path("o.card"), f"{flag}={value}", says=flag)

    def test_text_from_everywhere_gives_the_same_card(self):
        sources = {"p": ["-p", DOCUMENT], "f": ["-f", path("doc.txt")], "dash": ["-f", "-"], "stdin": []}
        tokens = self.report("info", path("doc4.card"))["tokens"]
        for name, flags in sources.items():
            with self.subTest(source=name):
                stdin = DOCUMENT.encode() if name in ("dash", "stdin") else b""
                packed = self.report("pack", *flags, "-o", path(f"{name}.card"), stdin=stdin)
                self.assertEqual(packed["tokens"], tokens)
                # All of the card is a prefix of the document's tokens.
                run = self.report("run", "--card", path(f"{name}.card"), "--whole", "-p", DOCUMENT + "x", "-n", "1")
                self.assertGreaterEqual(run["cached_tokens"], tokens - 1)

    def test_report(self):
        packed = self.report("pack", "-p", DOCUMENT, "-o", path("r.card"), "--agent", "archivist")
        info = self.report("info", path("r.card"))
        for key in ("content_id", "tokens", "policy", "file_bytes", "f16_bytes", "code_bits", "total_bits"):
            self.assertEqual(packed[key], info[key], key)
        self.assertEqual(packed["card"], path("r.card"))
        self.assertEqual(packed["file_bytes"], os.path.getsize(path("r.card")))
        self.assertEqual(set(packed["stages_us"]), {"prefill", "take", "plan", "quantize", "write"})
        self.assertGreater(packed["stages_us"]["prefill"], 0)
        self.assertEqual(info["sender"], "archivist")
        # 2 layers, 2 KV heads of 64 channels, keys and values, 2 bytes.
        self.assertEqual(info["f16_bytes"], info["tokens"] * 2 * 2 * 128 * 2)
        # The first 4 tokens are exact, all others have 4 bits.
        self.assertAlmostEqual(info["code_bits"], (4 * 16 + (info["tokens"] - 4) * 4) / info["tokens"], places=9)
        text = self.succeed("pack", "-p", DOCUMENT, "-o", path("r.card"))
        self.assertIn(f"{info['tokens']} tokens", text)
        self.assertIn("policy uniform", text)
        self.assertIn("prefill", text)

    def test_warns_of_keys_that_few_bits_garble(self):
        write_model("biased", "architecture=qwen2", "key_bias=600")
        pack = ["pack", "-m", path("biased.gguf"), "-p", DOCUMENT, "-o", path("biased.card"), "--json"]
        done = self.execute(*pack)
        self.assertEqual(done.returncode, 0, done.stderr)
        warning = done.stderr.decode()
        self.assertIn("warning", warning)
        packed = json.loads(done.stdout)
        self.assertGreater(packed["score_error"], 0.4)
        self.assertGreater(packed["loss"]["mean_kl"], 0.2)
        self.assertIn(f"mean KL of {packed['loss']['mean_kl']:.3g} ", warning)
        exact = self.execute(*pack, "--bits", "16")
        self.assertNotIn("warning", exact.stderr.decode())
        self.assertEqual(json.loads(exact.stdout)["score_error"], 0)
        self.assertNotIn("loss", json.loads(exact.stdout))

    def test_bits_and_policies(self):
        sizes = {"uniform": [], "local": []}
        for bits in ("4", "5.5", "8", "12", "16"):
            for policy in ("uniform", "local"):
                if policy == "local" and bits in ("4", "16"):
                    continue  # refused: there is nothing to choose
                packed = self.report("pack", "-p", DOCUMENT, "--bits", bits, "--policy", policy, "-o", path("b.card"))
                self.assertEqual(packed["policy"], policy)
                sizes[policy].append(packed["file_bytes"])
                # Over all tokens but the first 4. More: tokens made exact need no scales, 16 bits for 64 channels, and
                # give them to others. Less: less than the widest step of one token.
                others = packed["tokens"] - 4
                average = (packed["code_bits"] * packed["tokens"] - 4 * 16) / others
                self.assertLessEqual(average, float(bits) + 16 / 64)
                self.assertGreater(average, float(bits) - 8 / others)
        for policy in sizes:
            self.assertEqual(sizes[policy], sorted(sizes[policy]))

    def test_max_bytes_is_met(self):
        for limit in (120000, 150001, 200000):
            for policy in ("uniform", "local"):
                flags = ["--max-bytes", limit, "--policy", policy]
                packed = self.report("pack", "-p", DOCUMENT, *flags, "-o", path("max.card"))
                self.assertLessEqual(os.path.getsize(path("max.card")), limit)
                # Room is kept for the alignment of blocks, and one step of a token may be left.
                self.assertGreater(packed["file_bytes"], limit - 6000)

    def test_messages(self):
        messages = [{"role": "system", "content": "You are a miller."}, {"role": "user", "content": DOCUMENT},
                    {"role": "assistant", "content": "I see."}]
        (folder / "messages.json").write_text(json.dumps(messages), encoding="utf-8")
        self.succeed("pack", "--messages", path("messages.json"), "-o", path("chat.card"), "--agent", "miller")
        info = self.report("info", path("chat.card"))
        self.assertEqual([s["role"] for s in info["segments"]], ["system", "user", "assistant"])
        self.assertEqual({s["owner"] for s in info["segments"]}, {"miller"})
        self.assertEqual(info["segments"][0]["first_token"], 0)
        for before, after in zip(info["segments"], info["segments"][1:]):
            self.assertEqual(before["first_token"] + before["tokens"], after["first_token"])
        self.assertEqual(sum(s["tokens"] for s in info["segments"]), info["tokens"])
        more = self.report("pack", "--messages", path("messages.json"), "--generation-prompt", "-o", path("more.card"))
        self.assertGreater(more["tokens"], info["tokens"])
        # The receiver gives the whole conversation, one turn longer.
        messages.append({"role": "user", "content": QUESTION})
        (folder / "longer.json").write_text(json.dumps(messages), encoding="utf-8")
        run = self.report("run", "--card", path("chat.card"), "--messages", path("longer.json"), "-n", "2")
        self.assertEqual((run["mode"], run["seam"], run["cached_tokens"]), ("fused", "whole", info["tokens"]))

    def test_chat_is_a_conversation_of_the_text(self):
        messages = [{"role": "system", "content": "You are a miller."}, {"role": "user", "content": DOCUMENT}]
        (folder / "two.json").write_text(json.dumps(messages), encoding="utf-8")
        by_messages = self.report("pack", "--messages", path("two.json"), "-o", path("two.card"))
        by_flags = self.report("pack", "--chat", "-sys", "You are a miller.", "-p", DOCUMENT, "-o", path("flags.card"))
        self.assertEqual(by_flags["tokens"], by_messages["tokens"])
        self.assertGreater(by_flags["tokens"], self.report("info", path("doc4.card"))["tokens"])
        self.assertEqual([s["role"] for s in self.report("info", path("flags.card"))["segments"]], ["system", "user"])

    def test_file_is_private_and_nothing_is_left_beside_it(self):
        place = folder / "private"
        place.mkdir()
        old = os.umask(0)
        try:
            for _ in range(2):  # new, then in place of itself
                self.succeed("pack", "-p", DOCUMENT, "-o", place / "x.card", "--state-output", place / "x.state")
        finally:
            os.umask(old)
        self.assertEqual(sorted(p.name for p in place.iterdir()), ["x.card", "x.state"])
        for file in place.iterdir():
            self.assertEqual(file.stat().st_mode & 0o777, 0o600, file)


if __name__ == "__main__":
    main()
