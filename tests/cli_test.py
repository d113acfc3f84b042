#!/usr/bin/env python3
"""The command line, run as users run it: what it prints, what it writes, how it fails.

$QKVSHARE and $QKV_WRITE_TINY_MODEL name the programs. Models are tiny and random; everything happens in a temporary
folder, the cache included.
"""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

USAGE, REFUSED, MISSING, TOO_LONG, INTERRUPTED = 2, 3, 4, 5, 130  # src/cli/terminal.h
DOCUMENT = (
    "The water of the spring is cold, and it runs in the shade of the trees to the old mill. Nobody grinds corn there "
    "now. The wheel is broken, the roof has holes, and the cat of the farmer sleeps on the mill stone. In the summer "
    "the children of the town swim in the pond, and in the winter they cut holes in the ice and wait for the fish. "
    "The täglich café ends with 12 € and an owl 🦉. On the other side of the water a new mill was built in the year of "
    "the flood. It is made of stone and iron, it has four wheels, and a dozen workers are there from morning to night. "
)
QUESTION = "And who is cutting the ice?"

folder = Path()
environment = {}


def setUpModule():
    global folder
    folder = Path(tempfile.mkdtemp(prefix="qkv_cli_test_"))
    unittest.addModuleCleanup(shutil.rmtree, folder)
    environment.update(os.environ, QKV_CACHE=str(folder / "cache"))
    write_model("a")
    write_model("b", "seed=2")
    write_model("qwen", "architecture=qwen2")
    write_model("long", "context=32768")
    (folder / "doc.txt").write_text(DOCUMENT, encoding="utf-8")
    for bits in ("4", "16"):
        subprocess.run(words_of(["pack", "-f", path("doc.txt"), "--bits", bits, "-o", path(f"doc{bits}.card")]),
                       env=environment, check=True, capture_output=True)


def path(name):
    return str(folder / name)


def write_model(name, *settings):
    subprocess.run([os.environ["QKV_WRITE_TINY_MODEL"], path(f"{name}.gguf"), *settings], check=True)


def words_of(arguments):
    """Adds what tests share: model a, and one thread, since several would wait for each other in models this small."""
    words = [str(word) for word in arguments]
    if words and (words[0] in ("pack", "run") or words[:2] == ["eval", "handoff"]):
        at = 2 if words[0] == "eval" else 1
        words[at:at] = ["-t", "1"] + ([] if "-m" in words else ["-m", path("a.gguf")])
    return [os.environ["QKVSHARE"], *words]


class CliTest(unittest.TestCase):
    maxDiff = None

    def execute(self, *arguments, stdin=b"", **variables):
        return subprocess.run(words_of(arguments), input=stdin, env={**environment, **variables}, cwd=folder,
                              capture_output=True, timeout=300, check=False)

    def succeed(self, *arguments, stdin=b""):
        """Standard output of a run that must succeed."""
        done = self.execute(*arguments, stdin=stdin)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(b"error", done.stderr)
        return done.stdout.decode("utf-8", "replace")

    def report(self, *arguments, stdin=b""):
        return json.loads(self.succeed(*arguments, "--json", stdin=stdin))

    def fail_with(self, code, *arguments, says=(), stdin=b"", **variables):
        """Nothing on standard output, one line on standard error, this exit code, and no file more or less."""
        before = sorted(folder.glob("*"))
        done = self.execute(*arguments, stdin=stdin, **variables)
        error = done.stderr.decode("utf-8", "replace")
        self.assertEqual(done.returncode, code, error)
        self.assertEqual(done.stdout, b"")
        self.assertRegex(error, r"\Aerror: [^\n]+\n\Z")
        for word in [says] if isinstance(says, str) else says:
            self.assertIn(word, error)
        self.assertEqual(sorted(folder.glob("*")), before)


class PackTest(CliTest):
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
        self.assertEqual((run["mode"], run["seam"], run["cached_tokens"]), ("restore", "whole", info["tokens"]))

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


class InfoTest(CliTest):
    def test_info(self):
        info = self.report("info", path("doc4.card"))
        self.assertEqual((info["architecture"], info["layers"], info["kv_heads"], info["key_dim"], info["value_dim"]),
                         ("llama", 2, 2, 64, 64))
        self.assertEqual(info["model_name"], "tiny random model")
        self.assertEqual((info["exact_tokens"], info["hop"], info["position_offset"]), (4, 0, 0))
        self.assertEqual(info["rope"], {"base": 10000.0, "scale": 1.0, "dims": 64, "mode": 0})
        self.assertEqual(sum(level["tokens"] for level in info["levels"]), info["tokens"])
        for key in ("content_id", "model_fingerprint", "rope_fingerprint"):
            self.assertRegex(info[key], r"\A[0-9a-f]{64}\Z")
        self.assertRegex(info["created"], r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")
        text = self.succeed("info", path("doc4.card"))
        for word in (info["content_id"], "tiny random model (llama)", f"{info['tokens']}, from position 0", "K4V4",
                     "K16V16", "prompt", "policy uniform"):
            self.assertIn(word, text)

    def test_verify(self):
        content_id = self.report("info", path("doc4.card"))["content_id"]
        self.assertEqual(self.report("verify", path("doc4.card")),
                         {"card": path("doc4.card"), "valid": True, "content_id": content_id})
        self.assertEqual(self.succeed("verify", path("doc4.card")),
                         f"{path('doc4.card')}: valid, content id {content_id}\n")


class RunTest(CliTest):
    def setUp(self):
        self.tokens = self.report("info", path("doc16.card"))["tokens"]

    def test_text_after_a_card(self):
        run = self.report("run", "--card", path("doc16.card"), "-p", QUESTION, "-n", "6", "--temp", "0")
        whole = self.report("run", "-p", DOCUMENT + QUESTION, "-n", "6", "--temp", "0")
        self.assertEqual(run["mode"], "restore")
        self.assertIn(f"the card covers {run['cached_tokens']} of the prompt's", run["reason"])
        self.assertEqual(run["seam"], "joined")
        self.assertEqual(run["card"], path("doc16.card"))
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
                         r"\Amode: restore \(the card covers \d+ of .*; \d+ tokens evaluated; "
                         r"K f16, V f16, flash attention on\)\n\Z")

    def test_whole_prompt_shorter_than_the_card(self):
        # The card as a whole would not fit this context.
        run = self.report("run", "--card", path("doc4.card"), "--whole", "-p", DOCUMENT[:150], "-n", "2", "-c", "256")
        self.assertGreater(self.tokens, 256)
        self.assertEqual(run["mode"], "restore")
        self.assertGreater(run["cached_tokens"], 20)
        self.assertLess(run["cached_tokens"], self.tokens)
        self.assertLessEqual(run["evaluated_tokens"], 3)  # the last token, and those around the cut

    def test_whole_prompt_equal_to_the_card(self):
        run = self.report("run", "--card", path("doc4.card"), "--whole", "-p", DOCUMENT, "-n", "2")
        self.assertEqual((run["mode"], run["cached_tokens"], run["evaluated_tokens"]), ("restore", self.tokens - 1, 1))
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
        self.assertEqual(turn["mode"], "restore")
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
        self.assertEqual(self.report("run", "--card", path("q8.card"), "-p", QUESTION, "-n", "2")["mode"], "restore")

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
        self.assertEqual(run["mode"], "restore")

    def test_seed_fixes_the_text(self):
        flags = ["-p", DOCUMENT, "-n", "12", "--temp", "1"]
        texts = [self.report("run", *flags, "-s", seed)["text"] for seed in (1, 1, 2)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_file_name_of_the_model_does_not_matter(self):
        shutil.copy(path("a.gguf"), path("renamed.bin"))
        run = self.report("run", "-m", path("renamed.bin"), "--card", path("doc4.card"), "-p", QUESTION, "-n", "2")
        self.assertEqual(run["mode"], "restore")

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
        self.assertEqual(again["mode"], "restore")
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

    def test_other_architecture(self):
        self.succeed("pack", "-m", path("qwen.gguf"), "-p", DOCUMENT, "-o", path("q.card"))
        run = self.report("run", "-m", path("qwen.gguf"), "--card", path("q.card"), "--chat", "-p", QUESTION, "-n", "2")
        self.assertEqual(run["mode"], "restore")


class EvalTest(CliTest):
    def test_handoff(self):
        flags = ["--bits", "16", "-f", path("doc.txt"), "-o", path("e.card"), "--state-output", path("e.state")]
        self.succeed("pack", *flags)
        common = ["eval", "handoff", "--card", path("e.card"), "--state", path("e.state"), "-q", QUESTION, "-n", "6"]
        report = self.report(*common, "-q", "Why?")
        self.assertEqual([q["question"] for q in report["questions"]], [QUESTION, "Why?"])
        for question in report["questions"]:
            self.assertEqual([arm["name"] for arm in question["arms"]], ["re-prefill", "F16 state", "card"])
            for arm in question["arms"]:
                self.assertEqual(arm["ttft_us"], sum(arm["stages_us"].values()))
            self.assertEqual(question["arms"][1]["answer"], question["arms"][2]["answer"])
        self.assertEqual(report["card_vs_f16"]["max_kl"], 0)  # exact rows, the same pieces
        self.assertEqual(report["card_vs_f16"]["top1_agreement"], 1)
        text = self.succeed(*common)
        for word in ("re-prefill", "F16 state", "noise floor", QUESTION):
            self.assertIn(word, text)
        (folder / "answer.txt").write_text("The children are cutting the ice.", encoding="utf-8")
        more = self.report(*common, "--known-answer", "Who?", path("answer.txt"))
        self.assertEqual(len(more["questions"]), 1)
        self.assertGreater(more["card_vs_f16"]["tokens"], self.report(*common)["card_vs_f16"]["tokens"] + 10)


class ErrorTest(CliTest):
    def test_wrong_flags(self):
        self.fail_with(USAGE, says="--help")
        self.fail_with(USAGE, "fly", says="fly")
        self.fail_with(USAGE, "pack", "--frobnicate", "-p", "x", "-o", path("no.card"), says="--frobnicate")
        self.fail_with(USAGE, "pack", "-p", "x", says="--output")
        self.fail_with(USAGE, "info", says="card")
        self.fail_with(USAGE, "run", "-p", "x", "-n", "many", says="many")
        for flag in ("-n", "-c", "-t", "-ub"):
            self.fail_with(USAGE, "run", "-p", "x", flag, "-1")
        self.fail_with(USAGE, "pack", "-p", "x", "--max-bytes", "-1", "-o", path("no.card"))
        self.fail_with(USAGE, "pack", "-p", "x", "--max-bytes", "0", "-o", path("no.card"))
        self.fail_with(USAGE, "pack", "-p", "x", "--max-bytes", "9", "--bits", "4", "-o", path("no.card"), says="--bits")
        self.fail_with(USAGE, "pack", "-p", "x", "-sys", "Be brief.", "-o", path("no.card"), says="--chat")
        self.fail_with(USAGE, "run", "-p", "x", "-ub", "0")
        self.fail_with(USAGE, "run", "-p", "x", "-t", "5000", says="512")
        for flag in ("--rope-freq-base", "--rope-freq-scale", "--temp", "--top-p", "--min-p"):
            self.fail_with(USAGE, "run", "-p", "x", flag, "nan", says="nan")
        self.fail_with(USAGE, "run", "-p", "x", "--rope-freq-base", "-1")
        for flag in ("--card", "-f", "--messages", "-o"):  # an unset variable
            self.fail_with(USAGE, "run", flag, "", says="empty")
        self.fail_with(USAGE, "pack", "-p", "x", "--policy", "local", "-o", path("no.card"), says="changes nothing")
        self.fail_with(USAGE, "pack", "-p", "x", "-o", path("no.card"), "--state-output", path("no.card"), says="same")

    def test_targets_that_are_no_files_stay(self):
        os.mkfifo(folder / "pipe")
        self.fail_with(USAGE, "pack", "-p", "x", "-o", path("pipe"), says="regular file")
        self.assertTrue((folder / "pipe").is_fifo())
        self.fail_with(USAGE, "pack", "-p", "x", "-o", str(folder), says="regular file")

    def test_inputs_and_other_files_are_not_overwritten(self):
        shutil.copy(path("a.gguf"), path("copy.gguf"))
        (folder / "precious.txt").write_text("precious")
        for flags in (["-f", path("doc.txt"), "-o", path("doc.txt")], ["-p", "x", "-o", path("precious.txt")],
                      ["-m", path("copy.gguf"), "-p", "x", "-o", path("copy.gguf")],
                      ["-f", path("doc.txt"), "-o", path("no.card"), "--state-output", path("doc.txt")]):
            self.fail_with(USAGE, "pack", *flags, says="choose another name")
        self.assertEqual((folder / "precious.txt").read_text(), "precious")
        self.assertEqual((folder / "doc.txt").read_text(encoding="utf-8"), DOCUMENT)
        os.symlink("target.card", folder / "link.card")
        self.succeed("pack", "-p", "x", "-o", path("link.card"))
        self.assertTrue((folder / "link.card").is_symlink())
        self.succeed("verify", path("target.card"))

    def test_error_output_that_is_lost_changes_nothing(self):
        for arguments, code in ((["info", path("no.card")], MISSING),
                                (["run", "--card", path("doc4.card"), "-p", "x", "-n", "2"], 0)):
            with open("/dev/full", "wb") as full:
                done = subprocess.run(words_of(arguments), env=environment, stdout=subprocess.PIPE, stderr=full, check=False)
            self.assertEqual(done.returncode, code)

    def test_output_that_is_lost_is_a_failure(self):
        for arguments in (["info", path("doc4.card"), "--json"], ["run", "-p", "x", "-n", "3", "--temp", "0"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run(words_of(arguments), env=environment, stdout=full, stderr=subprocess.PIPE, check=False)
            self.assertEqual(done.returncode, MISSING, done.stderr)
            self.assertIn(b"output", done.stderr)

    def test_names_that_are_not_text(self):
        name = os.fsencode(folder) + b"/a\xff.card"
        done = subprocess.run([os.environ["QKVSHARE"].encode(), b"pack", b"-t", b"1", b"-m", os.fsencode(path("a.gguf")),
                               b"-p", b"x", b"--json", b"-o", name], env=environment, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        json.loads(done.stdout)
        os.unlink(name)
        self.succeed("pack", "-p", "x", "--agent", "\x1b]0;title\a", "-o", path("escape.card"))
        self.assertNotIn("\x1b", self.succeed("info", path("escape.card")))
        self.fail_with(USAGE, "eval", says="--help")
        self.fail_with(USAGE, "pack", "-p", "x", "--policy", "oracle", "-o", path("no.card"),
                       says=["oracle", "uniform"])
        for bits in ("3.9", "17", "-4", "nan", "inf"):
            self.fail_with(USAGE, "pack", "-p", DOCUMENT, "--bits", bits, "-o", path("no.card"))
            self.fail_with(USAGE, "run", "-p", DOCUMENT, "-n", "1", "--bits", bits, "-o", path("no.card"))

    def test_wrong_prompts(self):
        self.fail_with(USAGE, "pack", "-p", "x", "-f", path("doc.txt"), "-o", path("no.card"), says="only one")
        self.fail_with(USAGE, "pack", "-o", path("no.card"), says="empty")
        self.fail_with(USAGE, "run", says="empty")
        self.fail_with(MISSING, "pack", "-f", path("none.txt"), "-o", path("no.card"), says="none.txt")
        for text in (b"caf\xe9 noir", b"cut \xf0\x9f\xa6", b"\xed\xa0\x80"):
            (folder / "latin.txt").write_bytes(text)
            self.fail_with(USAGE, "pack", "-f", path("latin.txt"), "-o", path("no.card"), says=["UTF-8", "at byte"])
            self.fail_with(USAGE, "run", "--card", path("doc4.card"), stdin=text, says="UTF-8")
        for text in ("", "{", "[]", "{}", '["x"]', '[{"role": "user"}]', '[{"role": "user", "content": 3}]'):
            (folder / "bad.json").write_text(text, encoding="utf-8")
            self.fail_with(USAGE, "pack", "--messages", path("bad.json"), "-o", path("no.card"), says='"content"')

    def test_names_of_agents_become_text(self):
        self.succeed("pack", "-p", "x", "--agent", os.fsdecode(b"a\xff\n"), "-o", path("agent.card"))
        self.assertEqual(self.report("info", path("agent.card"))["sender"], "a\ufffd\n")

    def test_missing_files(self):
        self.fail_with(MISSING, "run", "-m", path("none.gguf"), "-p", "x", says="none.gguf")
        self.fail_with(MISSING, "run", "-m", "smollm2-135m", "-p", "x", says="models get smollm2-135m")
        self.fail_with(MISSING, "run", "-m", "no-such-name", "-p", "x", says="no-such-name")
        self.fail_with(MISSING, "models", "get", "no-such-name", says="no-such-name")
        for command in (["info"], ["verify"], ["run", "-p", "x", "--card"]):
            self.fail_with(MISSING, *command, path("none.card"), says="none.card")
        self.fail_with(MISSING, "pack", "-p", "x", "-o", path("none/x.card"), says="none/x.card")
        self.fail_with(MISSING, "run", "-p", "x", "-n", "1", "-o", path("none/x.card"), says="none/x.card")
        self.fail_with(MISSING, "pack", "-p", "x", "-o", path("no.card"), "--state-output", path("none/x"),
                       says="none/x")
        self.fail_with(MISSING, "pack", "-p", "x", "-o", path("doc.txt/x.card"), says="doc.txt/x.card")
        self.fail_with(MISSING, "info", path("two\nlines.card"))

    def test_files_that_are_something_else(self):
        self.fail_with(REFUSED, "run", "-m", path("doc.txt"), "-p", "x", says="doc.txt")
        self.fail_with(REFUSED, "info", path("doc.txt"))
        self.fail_with(REFUSED, "run", "--card", path("a.gguf"), "-p", "x")
        (folder / "empty.card").touch()
        self.fail_with(REFUSED, "verify", path("empty.card"))

    def test_corrupt_cards(self):
        good = Path(path("doc4.card")).read_bytes()
        places = sorted({0, 9, len(good) - 1, *range(64, len(good), len(good) // 23)})
        for at in places:
            with self.subTest(byte=at):
                (folder / "flipped.card").write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1:])
                self.fail_with(REFUSED, "info", path("flipped.card"))
                self.fail_with(REFUSED, "verify", path("flipped.card"))
        self.fail_with(REFUSED, "run", "--card", path("flipped.card"), "-p", QUESTION)
        for length in (1, 64, len(good) // 2, len(good) - 1):
            (folder / "flipped.card").write_bytes(good[:length])
            self.fail_with(REFUSED, "info", path("flipped.card"))
        (folder / "flipped.card").write_bytes(good + b"\0")
        self.fail_with(REFUSED, "info", path("flipped.card"))

    def test_cards_of_others(self):
        for model in ("b.gguf", "qwen.gguf"):  # other weights in the same shapes; another architecture
            self.fail_with(REFUSED, "run", "-m", path(model), "--card", path("doc4.card"), "-p", "x",
                           says="another model")
        self.fail_with(REFUSED, "run", "--rope-freq-base", "20000", "--card", path("doc4.card"), "-p", "x",
                       says=["RoPE", "10000", "20000"])
        self.fail_with(REFUSED, "run", "--rope-freq-scale", "0.5", "--card", path("doc4.card"), "-p", "x", says="RoPE")
        self.fail_with(REFUSED, "run", "--card", path("doc4.card"), "-p", "x", "-o", path("no.card"), says="-o")
        self.fail_with(USAGE, "run", "--card", path("doc4.card"), "--chat", "-sys", "Be brief.", "-p", "x", says="-sys")
        # A larger vocabulary: ids that mean nothing here.
        write_model("large", "vocab=2000")
        self.succeed("pack", "-m", path("large.gguf"), "-p", DOCUMENT + "\u91cf\u5b50<|unused_1900|>", "-o", path("large.card"))
        self.fail_with(REFUSED, "run", "--card", path("large.card"), "-p", "x", says="another model")

    def test_a_pipe_is_no_card(self):
        os.mkfifo(folder / "card.pipe")
        self.fail_with(USAGE, "info", path("card.pipe"), says="regular file")

    def test_context_is_a_limit(self):
        self.fail_with(TOO_LONG, "pack", "-p", DOCUMENT, "-c", "30", "-o", path("no.card"), says="30 available")
        self.fail_with(TOO_LONG, "run", "-p", DOCUMENT * 3, "-c", "300", "-n", "1", says="300 available")
        self.report("pack", "-p", DOCUMENT, "-c", "350", "-ub", "4096", "-o", path("tight.card"))
        run = self.report("run", "-p", "the end", "-c", "12", "-n", "50", "--temp", "0")
        self.assertEqual((run["stop"], run["cache_rows"]), ("context", 12))

    def test_too_long(self):
        tokens = self.report("info", path("doc4.card"))["tokens"]
        self.fail_with(TOO_LONG, "run", "--card", path("doc4.card"), "-c", "256", "-p", "x",
                       says=["256 available", "-c"])
        self.fail_with(TOO_LONG, "pack", "-c", "256", "-p", DOCUMENT, "-o", path("no.card"),
                       says=[f"{tokens} tokens needed", "256 available"])
        # More than the model was trained for, where -c is not given.
        self.fail_with(TOO_LONG, "pack", "-p", DOCUMENT * 10, "-o", path("no.card"), says="2048 available")
        for limit in (1, 1000, 80000):
            self.fail_with(TOO_LONG, "pack", "-p", DOCUMENT, "--max-bytes", limit, "-o", path("no.card"),
                           says=[f"{limit} are available", "needs"])

    def test_unknown_instruction_set(self):
        for command in (["run", "-p", "x", "--card"], ["info"]):
            self.fail_with(USAGE, *command, path("doc4.card"), says="QKV_FORCE_ISA=abacus", QKV_FORCE_ISA="abacus")
        done = self.execute("verify", path("doc4.card"), QKV_FORCE_ISA="scalar")
        self.assertEqual(done.returncode, 0, done.stderr)


class HelpTest(CliTest):
    def test_every_command_has_an_example(self):
        text = self.succeed("--help")
        self.assertIn("130 interrupted", text)
        commands = re.findall(r"^  (\w+) {2,}\S", text[text.upper().index("SUBCOMMANDS"):], re.MULTILINE)
        self.assertEqual(set(commands), {"pack", "run", "info", "verify", "models", "eval"})
        for command in commands:
            example = rf"Example:\n(  .*\n)*  (.*\| )?qkvshare {command} "
            self.assertRegex(self.succeed(command, "--help"), example, command)

    def test_version(self):
        self.assertRegex(self.succeed("--version"), r"\Aqkvshare \d+\.\d+\.\d+ \(llama\.cpp \S+\)\n\Z")

    def test_models(self):
        models = self.report("models", "list")
        self.assertIn("smollm2-135m", [model["name"] for model in models])
        self.assertFalse(any(model["present"] for model in models))  # the cache folder is the test's own
        self.assertIn("Apache-2.0", self.succeed("models", "list"))
        self.assertEqual(self.succeed("models", "path", path("a.gguf")), path("a.gguf") + "\n")


class InterruptTest(CliTest):
    def interrupt(self, *arguments):
        """Starts a command whose prefill is long, presses Ctrl-C in it, returns the exit code and how long it took."""
        terminal, side = pty.openpty()  # progress is shown on terminals only
        self.addCleanup(os.close, terminal)
        process = subprocess.Popen(words_of(arguments), env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=side)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        os.close(side)
        shown = b""
        deadline = time.monotonic() + 120
        while not re.search(rb"reading \[=* *\] [1-9]\d*/", shown):
            self.assertLess(time.monotonic(), deadline, shown)
            self.assertIsNone(process.poll(), shown)
            if select.select([terminal], [], [], 1)[0]:
                try:
                    shown += os.read(terminal, 4096)
                except OSError:  # the other side was closed
                    self.fail(shown)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        code = process.wait(timeout=60)
        return code, time.monotonic() - start

    def test_long_prefill(self):
        before = sorted(folder.glob("*"))
        text = folder / "long.txt"
        text.write_text(DOCUMENT * 80, encoding="utf-8")
        for command in (["pack"], ["run", "-n", "1"]):
            with self.subTest(command=command[0]):
                code, seconds = self.interrupt(*command, "-m", path("long.gguf"), "-f", text, "-o", path("long.card"))
                self.assertEqual(code, INTERRUPTED)
                self.assertLess(seconds, 5)  # the whole prefill takes longer on any machine
                self.assertEqual(sorted(folder.glob("*")), sorted([*before, text]))


if __name__ == "__main__":
    if "QKVSHARE" not in os.environ or "QKV_WRITE_TINY_MODEL" not in os.environ:
        print("run this through ctest, which sets QKVSHARE and QKV_WRITE_TINY_MODEL", file=sys.stderr)
        sys.exit(77)
    unittest.main()
