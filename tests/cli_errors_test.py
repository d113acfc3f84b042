#!/usr/bin/env python3
"""Wrong flags, files, cards and prompts, in every command."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from cli_support import (USAGE, REFUSED, MISSING, TOO_LONG, DOCUMENT, QUESTION, CliTest, environment, folder, main,
                         path, setUpModule, words_of, write_model)


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
        self.fail_with(USAGE, "pack", "-p", "x", "--generation-prompt", "-o", path("no.card"), says="--generation-prompt")
        for flag in ("--whole", "--verify"):
            self.fail_with(USAGE, "run", "-p", "x", flag, says=[flag, "--card"])
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
        for arguments in (["info", path("doc4.card"), "--json"], ["run", "-p", "x", "-n", "3", "--temp", "0"],
                          ["--help"], ["--version"], ["pack", "--help"]):
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
        for bits in ("1.9", "17", "-4", "nan", "inf"):
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
        self.fail_with(REFUSED, "run", "--card", path("doc4.card"), "-p", "x", "-o", path("no.card"), "--inject", "restore",
                       says="-o")
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
        for limit in (1, 1000, 30000):
            self.fail_with(TOO_LONG, "pack", "-p", DOCUMENT, "--max-bytes", limit, "-o", path("no.card"),
                           says=[f"{limit} are available", "needs"])

    def test_unknown_instruction_set(self):
        for command in (["run", "-p", "x", "--card"], ["info"]):
            self.fail_with(USAGE, *command, path("doc4.card"), says="QKV_FORCE_ISA=abacus", QKV_FORCE_ISA="abacus")
        done = self.execute("verify", path("doc4.card"), QKV_FORCE_ISA="scalar")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    main()
