#!/usr/bin/env python3
"""How `run` uses cards: attended to where they lie, or restored; lists of cards, and cards of what follows them."""

import ctypes
import os
import subprocess
from pathlib import Path

from cli_support import (DOCUMENT, MISSING, QUESTION, REFUSED, TOO_LONG, USAGE, CliTest, environment, folder, main, path,
                         setUpModule, words_of)


def memory_of(process, file=None):
    """kB by kind: of the pages that a process has of a file, or of all its memory."""
    sums = {}
    counts = file is None
    for line in Path(f"/proc/{process.pid}/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[0].endswith(":"):
            if counts and words[-1] == "kB":
                sums[words[0][:-1]] = sums.get(words[0][:-1], 0) + int(words[1])
        elif file is not None:
            counts = line.endswith(" " + file)
    return sums


def without_huge_pages():
    """Where a system gives them to everybody, they round a process's memory up by megabytes."""
    ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE


class InjectTest(CliTest):
    def test_the_way_is_chosen_and_said(self):
        common = ["run", "--card", path("doc16.card"), "-p", QUESTION, "-n", "6", "--temp", "0"]
        runs = {way: self.report(*common, "--inject", way) for way in ("auto", "fused", "restore")}
        self.assertEqual([runs[way]["mode"] for way in runs], ["fused", "fused", "restore"])
        self.assertEqual([runs[way]["reason"] for way in runs], ["the self-test passed", "as asked for", "as asked for"])
        self.assertEqual(runs["auto"]["text"], runs["fused"]["text"])
        self.assertEqual(set(runs["fused"]["stages_us"]), {"open_verify", "attach", "suffix_prefill", "first_token"})
        # Only the receiver's own tokens take rows of the cache.
        fused, restored = runs["fused"], runs["restore"]
        self.assertEqual(fused["cached_tokens"], restored["cached_tokens"])
        self.assertEqual(fused["cache_rows"], restored["cache_rows"] - restored["cached_tokens"])

    def test_what_cannot_be_fused_is_restored_or_refused(self):
        common = ["run", "--card", path("doc4.card"), "-p", QUESTION, "-n", "2", "--temp", "0"]
        for flags, why in ((["-ctk", "q8_0"], "f16"), (["-fa", "off"], "flash attention")):
            run = self.report(*common, *flags)
            self.assertEqual(run["mode"], "restore")
            self.assertIn(why, run["reason"])
            self.fail_with(REFUSED, *common, *flags, "--inject", "fused", says=why)
        self.fail_with(USAGE, *common, "--inject", "magic", says="use auto, fused or restore")
        self.fail_with(USAGE, "run", "-p", "x", "--inject", "fused", says="--card")

    def test_the_context_is_the_card_and_what_follows(self):
        tokens = self.report("info", path("doc4.card"))["tokens"]
        common = ["run", "--card", path("doc4.card"), "-p", QUESTION, "-n", "0"]
        evaluated = self.report(*common)["evaluated_tokens"]
        for way in ("fused", "restore"):
            self.report(*common, "--inject", way, "-c", tokens + evaluated)
            self.fail_with(TOO_LONG, *common, "--inject", way, "-c", tokens, says="the context is too short")

    def test_hops(self):
        """Each hop writes a card of its own tokens; the next takes all of them."""
        first = self.report("run", "--card", path("doc16.card"), "-p", QUESTION, "-n", "4", "--temp", "0", "--bits", "16",
                            "-o", path("second.card"), "--agent", "B")
        info = self.report("info", path("second.card"))
        self.assertEqual(info["tokens"], first["evaluated_tokens"] + first["generated_tokens"])
        self.assertEqual([s["role"] for s in info["segments"]], ["prompt", "generated"])
        chain = ["--card", path("doc16.card"), "--card", path("second.card")]
        runs = [self.report("run", *chain, "-p", " Why?", "-n", "6", "--temp", "0", "--inject", way)
                for way in ("fused", "restore")]
        self.assertEqual(runs[0]["cached_tokens"], runs[1]["cached_tokens"])
        self.assertGreater(runs[0]["cached_tokens"], first["cached_tokens"] + first["evaluated_tokens"])
        third = self.report("run", *chain, "-p", " Why?", "-n", "2", "--temp", "0", "-o", path("third.card"))
        self.assertEqual(self.report("info", path("third.card"))["tokens"],
                         third["evaluated_tokens"] + third["generated_tokens"])
        # A chain after another card is moved as a whole; a delta card before the one that it continues is none.
        moved = self.report("run", "--card", path("doc4.card"), *chain, "-p", " Why?", "-n", "2", "--temp", "0")
        self.assertGreater(moved["cached_tokens"], runs[0]["cached_tokens"])
        self.fail_with(REFUSED, "run", "--card", path("second.card"), "--card", path("doc16.card"), "-p", "x",
                       says="give that card before it")
        self.fail_with(MISSING, "run", "--card", path("doc16.card"), "--card", path("none.card"), "-p", "x",
                       says="none.card")
        # What a restored card held must not be quantized again.
        self.fail_with(REFUSED, "run", "--card", path("doc16.card"), "-p", "x", "-o", path("no.card"), "--inject",
                       "restore", says=("-o together with --card", "--inject fused"))

    def test_processes_share_the_pages_of_one_card(self):
        (folder / "long.txt").write_text(DOCUMENT * 20, encoding="utf-8")
        card = path("shared.card")
        tokens = self.report("pack", "-m", path("long.gguf"), "-f", path("long.txt"), "--bits", "16", "-o", card)["tokens"]
        card_kb = os.path.getsize(card) / 1024

        # The right answer: of the same text, prefilled into the own cache of llama.cpp, whose flash attention would add up
        # values in F16. The tokens of the answer are no near ties.
        question = "Who sleeps on the mill stone?"
        turn = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        (folder / "whole.txt").write_text(DOCUMENT * 20 + turn, encoding="utf-8")
        common = ["-m", path("long.gguf"), "--temp", "0", "-n", "6"]
        done = self.execute("run", *common, "-f", path("whole.txt"), "-fa", "off")
        self.assertEqual(done.returncode, 0, done.stderr)

        def start(*flags):
            process = subprocess.Popen(words_of(["run", "-i", *common, *flags]), env=environment, stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=without_huge_pages)
            self.addCleanup(process.kill)
            process.stdin.write(question.encode() + b"\n")
            process.stdin.flush()
            return process

        receivers = [start("--card", card, "--inject", "fused", "-c", tokens + 512) for _ in range(8)]
        alone = start("-c", "512")  # as many rows of its own, and no card
        everyone = [*receivers, alone]
        lines = [process.stdout.readline() for process in everyone]  # each has attended to what it has by now
        pages = [memory_of(process, card) for process in receivers]
        private = [memory_of(process)["Private_Dirty"] for process in everyone]  # clean: pages of the program and model
        answers = [line + process.communicate(timeout=60)[0] for line, process in zip(lines, everyone)]
        self.assertEqual(answers[:-1], [done.stdout] * 8)
        self.assertNotEqual(answers[-1], done.stdout)
        # What one has of its own because of the card: ids, positions, places and such of its tokens (measured: 127 bytes
        # each), and 270 kB that do not depend on them. A token's rows are 1024 bytes: a copy of the keys of one head in one
        # layer would be too much.
        most_kb = tokens * 192 / 1024 + 512
        for kinds, kb in zip(pages, private):
            self.assertEqual((kinds["Private_Clean"], kinds["Private_Dirty"], kinds["Anonymous"]), (0, 0, 0), kinds)
            self.assertGreater(kinds["Shared_Clean"] + kinds["Shared_Dirty"], card_kb * 0.9)  # dirty: all of a tmpfs
            self.assertLess(kb - private[-1], most_kb)

    def test_cards_side_by_side(self):
        (folder / "other.txt").write_text("The owl sleeps in the tower, and the bell is silent.")
        self.succeed("pack", "-f", path("other.txt"), "-o", path("other.card"))
        run = self.report("run", "--card", path("doc4.card"), "--card", path("other.card"), "-p", QUESTION, "-n", "2")
        tokens = sum(self.report("info", path(card))["tokens"] for card in ("doc4.card", "other.card"))
        self.assertEqual(run["mode"], "fused")
        self.assertGreaterEqual(run["cached_tokens"], tokens - 2)
        # What follows names them both.
        self.succeed("run", "--card", path("doc4.card"), "--card", path("other.card"), "-p", QUESTION, "-n", "2", "--temp",
                     "0", "-o", path("both.card"))
        self.assertEqual(len(self.report("info", path("both.card"))["context"]), 2)
        found = self.report("run", "--card", path("both.card"), "-p", " Why?", "-n", "2")
        self.assertEqual(found["cards"], [path(card) for card in ("doc4.card", "other.card", "both.card")])


if __name__ == "__main__":
    main()
