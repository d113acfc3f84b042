#!/usr/bin/env python3
"""qkvshare run: prompts, cards, generated text and the cards of it."""

import os
import shutil
import subprocess

from cli_support import (DOCUMENT, MISSING, QUESTION, USAGE, CliTest, environment, folder, main, path, setUpModule,
                         words_of, write_model)


class RunTest(CliTest):
    def test_flags_of_the_card_to_write_need_one(self):
        for flags in (["--bits", "5"], ["--agent", "B"]):
            self.fail_with(USAGE, "run", "-p", "x", "-n", "1", *flags, says="--output")

    def test_cards_of_run_have_no_policy(self):
        flags = ["--card", path("doc4.card"), "-p", "x", "-o", path("no.card"), "--policy", "local"]
        self.fail_with(USAGE, "run", *flags, says="--policy")
        self.assertFalse((folder / "no.card").exists())

    def test_a_chat_says_where_its_input_cannot_be_read(self):
        source = os.open(folder, os.O_RDONLY)  # a folder cannot be read
        done = subprocess.run(words_of(["run", "-i"]), stdin=source, env=environment, capture_output=True, check=False)
        os.close(source)
        self.assertEqual(done.returncode, MISSING, done.stderr)
        self.assertIn(b"cannot read standard input", done.stderr)

    def setUp(self):
        self.tokens = self.report("info", path("doc16.card"))["tokens"]

    def test_text_after_a_card(self):
        run = self.report("run", "--card", path("doc16.card"), "--inject", "restore", "-p", QUESTION, "-n", "6", "--temp",
                          "0")
        whole = self.report("run", "-p", DOCUMENT + QUESTION, "-n", "6", "--temp", "0")
        self.assertEqual(run["mode"], "restore")
        self.assertEqual(run["reason"], "as asked for")
        self.assertEqual(run["seam"], "joined")
        self.assertEqual(run["cards"], [path("doc16.card")])
        self.assertGreaterEqual(run["cached_tokens"], self.tokens - 2)
        self.assertEqual(set(run["stages_us"]),
                         {"open_verify", "dequantize", "inject", "suffix_prefill", "first_token"})
        self.assertEqual(run["ttft_us"], sum(run["stages_us"].values()))
        self.assertEqual(whole["mode"], "prefill")
        self.assertEqual((whole["reason"], whole["cached_tokens"]), ("no card was given", 0))
        self.assertEqual(run["cached_tokens"] + run["evaluated_tokens"], whole["evaluated_tokens"])
        self.assertEqual(run["text"], whole["text"])  # the card is exact
        for each in (run, whole):
            # A sampled token is decoded when the next one is wanted.
            decoded = each["generated_tokens"] - (1 if each["stop"] == "length" else 0)
            self.assertEqual(each["cache_rows"], each["cached_tokens"] + each["evaluated_tokens"] + decoded)

    def test_report_without_json(self):
        json_run = self.report("run", "--card", path("doc4.card"), "-p", QUESTION, "-n", "6", "--temp", "0")
        done = self.execute("run", "--card", path("doc4.card"), "-p", QUESTION, "-n", "6", "--temp", "0", "--verify")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout.decode("utf-8", "replace"), json_run["text"] + "\n")
        self.assertRegex(done.stderr.decode(),
                         r"\Amode: fused \(the self-test passed; \d+ tokens from the card, \d+ evaluated; "
                         r"K f16, V f16, flash attention on\)\n\Z")

    def test_whole_prompt_shorter_than_the_card(self):
        # The card as a whole would not fit this context.
        run = self.report("run", "--card", path("doc4.card"), "--whole", "-p", DOCUMENT[:150], "-n", "2", "-c", "256")
        self.assertGreater(self.tokens, 256)
        self.assertEqual(run["mode"], "fused")
        self.assertGreater(run["cached_tokens"], 20)
        self.assertLess(run["cached_tokens"], self.tokens)
        self.assertLessEqual(run["evaluated_tokens"], 3)  # the last token, and those around the cut

    def test_whole_prompt_equal_to_the_card(self):
        run = self.report("run", "--card", path("doc4.card"), "--whole", "-p", DOCUMENT, "-n", "2")
        self.assertEqual((run["mode"], run["cached_tokens"], run["evaluated_tokens"]), ("fused", self.tokens - 1, 1))
        empty = self.report("run", "--card", path("doc4.card"), "-n", "2")  # nothing on standard input
        self.assertEqual((empty["cached_tokens"], empty["evaluated_tokens"]), (self.tokens - 1, 1))
        given = self.report("run", "--card", path("doc4.card"), "-n", "2", "-p", "")
        self.assertEqual((given["cached_tokens"], given["evaluated_tokens"]), (self.tokens - 1, 1))

    def test_prompt_that_differs_from_the_first_token_on_is_prefilled(self):
        run = self.report("run", "--card", path("doc4.card"), "--whole", "-p", "Quite another text.", "-n", "2")
        self.assertEqual((run["mode"], run["cached_tokens"]), ("prefill", 0))
        self.assertEqual(run["reason"], "the prompt and the card differ from the first token on")
        self.assertGreater(run["evaluated_tokens"], 5)

    def test_chat(self):
        first = self.report("run", "--chat", "-p", DOCUMENT, "-n", "3", "--temp", "0")
        self.assertGreater(first["evaluated_tokens"], self.tokens)  # the template's own tokens
        self.succeed("pack", "--chat", "-p", DOCUMENT, "-o", path("turn.card"))
        plain = self.report("run", "--card", path("turn.card"), "-p", QUESTION, "-n", "3")
        turn = self.report("run", "--card", path("turn.card"), "--chat", "-p", QUESTION, "-n", "3")
        self.assertEqual(turn["mode"], "fused")
        self.assertGreater(turn["evaluated_tokens"], plain["evaluated_tokens"])
        self.assertEqual(turn["cached_tokens"], self.report("info", path("turn.card"))["tokens"])

    def test_flags_of_llama_cpp(self):
        wanted = self.report("run", "--card", path("doc16.card"), "-p", QUESTION, "-n", "4", "--temp", "0")
        run = self.report("run", "-ngl", "0", "-ub", "64", "-c", "1024", "--card", path("doc16.card"), "-p", QUESTION,
                          "-n", "4", "--temp", "0", "--top-k", "40", "--top-p", "0.9", "--min-p", "0", "-s", "7")
        self.assertEqual(run["text"], wanted["text"])
        packed = self.report("pack", "-ngl", "0", "-ub", "64", "-f", path("doc.txt"), "--policy", "local",
                             "--bits", "6", "-o", path("ub.card"))
        self.assertEqual(packed["tokens"], self.tokens)

    def test_types_of_the_cache(self):
        common = ["run", "--card", path("doc16.card"), "-p", QUESTION, "-n", "4", "--temp", "0"]
        plain = self.report(*common)
        self.assertEqual([plain[key] for key in ("cache_type_k", "cache_type_v", "flash_attention")],
                         ["f16", "f16", True])
        run = self.report(*common, "-ctk", "q8_0", "--cache-type-v", "q4_0")
        self.assertEqual((run["mode"], run["cached_tokens"]), ("restore", plain["cached_tokens"]))
        self.assertEqual((run["cache_type_k"], run["cache_type_v"]), ("q8_0", "q4_0"))
        run = self.report(*common, "-fa", "off", "-ctv", "bf16")
        self.assertEqual((run["cache_type_v"], run["flash_attention"], run["mode"]), ("bf16", False, "restore"))
        self.succeed("pack", "-ctk", "q8_0", "-ctv", "q8_0", "-f", path("doc.txt"), "-o", path("q8.card"))
        self.assertEqual(self.report("run", "--card", path("q8.card"), "-p", QUESTION, "-n", "2")["mode"], "fused")

    def test_contradicting_types_of_the_cache(self):
        self.fail_with(USAGE, "run", "-p", "x", "-ctk", "q5_1", says=("q5_1", "f16, bf16, q8_0, q4_0"))
        self.fail_with(USAGE, "run", "-p", "x", "-fa", "maybe", says=("maybe", "on", "off"))
        # Before anything is loaded: there is no such model.
        self.fail_with(USAGE, "run", "-m", path("absent.gguf"), "-p", "x", "-ctv", "q8_0", "-fa", "off",
                       says=("q8_0", "-fa on"))
        pack = ["pack", "-m", path("absent.gguf"), "-p", "x", "-o", path("no.card")]
        self.fail_with(USAGE, *pack, "-ctk", "bf16", "--state-output", path("no.state"), says="--state-output")
        self.fail_with(USAGE, *pack, "--policy", "local", "--bits", "5", "-fa", "off", says="-fa off")

    def test_sliding_windows(self):
        write_model("window", "architecture=gemma3", "sliding_window=16")
        self.succeed("pack", "-m", path("window.gguf"), "-f", path("doc.txt"), "--bits", "16", "-o", path("w.card"))
        run = self.report("run", "-m", path("window.gguf"), "--card", path("w.card"), "-p", QUESTION, "-n", "2")
        self.assertEqual(run["mode"], "fused")

    def test_seed_fixes_the_text(self):
        flags = ["-p", DOCUMENT, "-n", "12", "--temp", "1"]
        texts = [self.report("run", *flags, "-s", seed)["text"] for seed in (1, 1, 2)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_file_name_of_the_model_does_not_matter(self):
        shutil.copy(path("a.gguf"), path("renamed.bin"))
        run = self.report("run", "-m", path("renamed.bin"), "--card", path("doc4.card"), "-p", QUESTION, "-n", "2")
        self.assertEqual(run["mode"], "fused")

    def saved(self, *flags):
        run = self.report("run", "-p", DOCUMENT, "-o", path("out.card"), "--agent", "writer", *flags)
        info = self.report("info", path("out.card"))
        self.assertEqual(info["tokens"], run["cache_rows"])
        self.assertEqual(info["sender"], "writer")
        roles = [(s["role"], s["tokens"]) for s in info["segments"]]
        generated = info["tokens"] - run["evaluated_tokens"]
        wanted = [("prompt", run["evaluated_tokens"])] + ([("generated", generated)] if generated > 0 else [])
        self.assertEqual(roles, wanted)
        return run

    def test_saved_card_of_text_stopped_by_length(self):
        for predict in (1, 5):
            run = self.saved("-n", predict, "--temp", "0", "--bits", "8")
            self.assertEqual((run["stop"], run["generated_tokens"]), ("length", predict))
            self.assertEqual(run["cache_rows"], run["evaluated_tokens"] + predict)  # all that was printed
        again = self.report("run", "--card", path("out.card"), "-p", QUESTION, "-n", "2")
        self.assertEqual(again["mode"], "fused")
        # What was generated may be other tokens than its text has.
        self.assertGreaterEqual(again["cached_tokens"], run["evaluated_tokens"] - 1)

    def test_saved_card_of_text_stopped_by_an_end_token(self):
        # At this temperature every token is about as likely as any other: 1 in 150 ends the text.
        for seed in range(50):
            run = self.saved("-n", "400", "--temp", "50", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-s", seed)
            if run["stop"] == "end":
                break
        self.assertEqual(run["stop"], "end")
        self.assertEqual(run["cache_rows"], run["evaluated_tokens"] + run["generated_tokens"] + 1)  # with the end token

    def test_saved_card_of_a_conversation_names_its_turns(self):
        self.succeed("run", "--chat", "-sys", "Be brief.", "-p", DOCUMENT, "-n", "3", "-o", path("turns.card"))
        segments = self.report("info", path("turns.card"))["segments"]
        self.assertEqual([s["role"] for s in segments], ["system", "user", "generated"])
        run = self.report("run", "--card", path("turns.card"), "--chat", "-p", QUESTION, "-n", "2")
        self.assertEqual(run["mode"], "fused")

    def test_saved_card_of_a_full_context(self):
        done = self.execute("run", "-p", "the end", "-c", "12", "-n", "50", "--temp", "0", "-o", path("full.card"))
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr, b"the context is full: the card holds all but the last token\n")
        self.assertEqual(self.report("info", path("full.card"))["tokens"], 12)

    def test_other_architecture(self):
        self.succeed("pack", "-m", path("qwen.gguf"), "-p", DOCUMENT, "-o", path("q.card"))
        run = self.report("run", "-m", path("qwen.gguf"), "--card", path("q.card"), "--chat", "-p", QUESTION, "-n", "2")
        self.assertEqual(run["mode"], "fused")


if __name__ == "__main__":
    main()
