#!/usr/bin/env python3
"""qkvshare run --interactive, through pipes and on a terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

from cli_support import (DOCUMENT, INTERRUPTED, MISSING, QUESTION, REFUSED, TOO_LONG, USAGE, CliTest, environment,
                         folder, main, path, setUpModule, words_of, write_model)

GREEDY = ["--temp", "0", "-n", "6"]
# With so many tokens the one that ends an answer comes late: not in the first 4000 after "Hi" or "Hello".
ENDLESS = ["-m", path("endless.gguf"), "--temp", "0", "-n", "2000"]


def chat(*arguments):
    return ["run", "-i", *arguments]


class Terminal:
    """A command on a terminal of its own, which Ctrl-C and Ctrl-D go through."""

    def __init__(self, test, *arguments):
        self.test = test
        self.shown = b""
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            words = words_of(arguments)
            os.execve(words[0], words, environment)
        test.addCleanup(os.close, self.terminal)

    def type(self, text):
        os.write(self.terminal, text.encode())

    def wait_for(self, pattern):
        """Reads on until the pattern is there, and forgets all up to its end."""
        deadline = time.monotonic() + 300
        while not (match := re.search(pattern, self.shown)):
            self.test.assertLess(time.monotonic(), deadline, self.shown)
            if select.select([self.terminal], [], [], 1)[0]:
                try:
                    self.shown += os.read(self.terminal, 4096)
                except OSError:  # the command has ended
                    self.test.fail(f"{pattern} is not in {self.shown}")
        self.shown = self.shown[match.end():]

    def wait_until_it_sleeps(self):
        """A second long: in a write, where the terminal's output is stopped."""
        asleep = 0
        while asleep < 20:
            state = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
            asleep = asleep + 1 if state == "S" else 0
            time.sleep(0.05)

    def exit_code(self):
        while True:
            try:
                if not os.read(self.terminal, 4096):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


class ChatTest(CliTest):
    @classmethod
    def setUpClass(cls):
        write_model("endless", "vocab=20000", "context=32768")


class PipeTest(ChatTest):
    def answers(self, *arguments, lines):
        done = self.execute(*chat(*arguments), stdin="".join(line + "\n" for line in lines).encode())
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_turns_and_cards_between_them(self):
        both = self.answers(*GREEDY, lines=[DOCUMENT, QUESTION])
        first = self.answers(*GREEDY, "-o", path("one.card"), "--bits", "16", "--agent", "miller", lines=[DOCUMENT])
        second = self.answers(*GREEDY, "--card", path("one.card"), lines=[QUESTION])
        self.assertEqual(first + second, both)
        self.assertEqual(first, self.execute("run", "--chat", "-p", DOCUMENT, *GREEDY).stdout)
        self.assertEqual(second, self.execute("run", "--card", path("one.card"), "--chat", "-p", QUESTION, *GREEDY).stdout)
        info = self.report("info", path("one.card"))
        self.assertEqual([s["role"] for s in info["segments"]], ["user", "generated"])
        self.assertEqual(info["sender"], "miller")
        self.answers(*GREEDY, "-o", path("four.card"), lines=[DOCUMENT, QUESTION])
        self.assertEqual(self.report("info", path("four.card"))["rounding"], "queries")

    def test_segments_of_a_conversation(self):
        self.answers(*GREEDY, "-o", path("talk.card"), "--chat", "-sys", "Be brief.", "-p", "One.", lines=["Two.", "Three."])
        segments = self.report("info", path("talk.card"))["segments"]
        self.assertEqual([s["role"] for s in segments], ["system", *["user", "generated"] * 3])
        for before, after in zip(segments, segments[1:]):
            self.assertEqual(before["first_token"] + before["tokens"], after["first_token"])

    def test_ends(self):
        self.assertEqual(self.answers(*GREEDY, lines=["", "  ", "/exit", "Hello"]), b"")
        done = self.execute(*chat(*GREEDY, "--card", path("doc4.card")), stdin=b"last line without its end")
        self.assertEqual((done.returncode, done.stdout.count(b"\n") > 0), (0, True))
        self.assertRegex(done.stderr, rb"\Amode: fused \(the self-test passed; \d+ tokens from the card; K f16, .*\)\n\Z")  # no "> "

    def test_carriage_returns_are_no_text(self):
        greeting = self.answers(*GREEDY, lines=["Hi"])
        self.assertEqual(self.answers(*GREEDY, lines=["Hi\r", "\r", "/exit\r", "Hello"]), greeting)
        done = self.execute(*chat(*GREEDY), stdin=b"Hi\r")  # without a line feed
        self.assertEqual(done.stdout, greeting)

    def test_a_conversation_that_fails_keeps_the_card(self):
        write_model("nan", "nan_logits=1")
        done = self.execute(*chat("-m", path("nan.gguf"), "-o", path("failed.card")), stdin=b"Hi\nHello\n")
        self.assertEqual((done.returncode, done.stdout), (REFUSED, b""))
        self.assertRegex(done.stderr, rb"\Aerror: [^\n]* not finite[^\n]*\n\Z")
        self.succeed("verify", path("failed.card"))
        self.assertEqual([s["role"] for s in self.report("info", path("failed.card"))["segments"]], ["user"])
        # Where nothing was said there is nothing to keep, and one error.
        self.fail_with(MISSING, *chat("-f", path("missing.txt"), "-o", path("no.card")), says="missing.txt")

    def test_interrupts_at_the_last_token_keep_the_card(self):
        only_token = ["-m", path("endless.gguf"), "--temp", "0", "-n", "1", "-p", "Hi", "-o", path("late.card")]
        for attempt in range(20):
            for arguments in (["run"], chat()):
                process = subprocess.Popen(words_of([*arguments, *only_token]), env=environment,
                                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                process.stdout.read(1)
                time.sleep(attempt * 0.00005)
                process.send_signal(signal.SIGINT)
                with process:
                    _, error = process.communicate(timeout=60)
                if process.returncode == -signal.SIGINT:  # the command had done its work
                    continue
                self.assertNotIn(b"error", error)
                self.assertIn(process.returncode, (0, INTERRUPTED))
                self.succeed("verify", path("late.card"))
                os.unlink(path("late.card"))

    def test_full_context(self):
        lines = f"{DOCUMENT * 3}\nHi\n".encode()
        for cards in ([], ["--card", path("doc4.card")]):
            common = chat(*GREEDY, "-c", "512", *cards)
            done = self.execute(*common, stdin=lines)
            self.assertEqual(done.returncode, TOO_LONG)
            self.assertRegex(done.stderr, rb"error: the context is full: \d+ tokens needed, 512 available; .* larger -c\n\Z")
            self.assertEqual(b"mode: fused" in done.stderr, bool(cards), done.stderr)
            self.assertEqual(done.stdout, self.execute(*common, stdin=b"Hi\n").stdout)  # as if not said
        done = self.execute(*chat("--temp", "0", "-n", "90", "-c", "24"), stdin=b"Hi\n")
        self.assertEqual(done.returncode, TOO_LONG)
        self.assertIn(b"the answer was cut", done.stderr)

    def test_text_that_is_none(self):
        done = self.execute(*chat(*GREEDY), stdin=b"caf\xe9\nHi\n")
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"UTF-8", done.stderr)
        self.assertEqual(done.stdout, self.execute(*chat(*GREEDY), stdin=b"Hi\n").stdout)

    def test_wrong_flags(self):
        for flags in (["--json"], ["--messages", path("doc.txt")], ["--whole", "--card", path("doc4.card")]):
            self.fail_with(USAGE, *chat(*flags), says=[flags[0], "--interactive"])
        self.fail_with(USAGE, *chat("-f", "-"), says="-f -")
        self.fail_with(USAGE, *chat("--card", path("doc4.card"), "--chat", "-sys", "x"), says="-sys")
        self.fail_with(REFUSED, *chat("--card", path("doc4.card"), "-o", path("no.card"), "-fa", "off"), says="-o")
        done = self.execute(*chat("--card", path("doc4.card"), "-o", path("no.card")))
        self.assertEqual((done.returncode, done.stdout), (USAGE, b""))
        self.assertIn(b"nothing was said", done.stderr)
        self.fail_with(REFUSED, *chat("-m", path("b.gguf"), "--card", path("doc4.card")), says="another model")
        self.fail_with(USAGE, *chat("-o", path("no.card")), says="nothing was said")

    def test_reader_that_goes_away(self):
        # The card that was asked for is written all the same.
        for arguments in (["run", "-p", "Hi"], chat("-p", "Hi")):
            process = subprocess.Popen(words_of([*arguments, *ENDLESS, "-o", path("pipe.card")]), env=environment,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            process.stdout.read(1)
            process.stdout.close()
            error = process.stderr.read()
            process.stderr.close()
            self.assertEqual(process.wait(timeout=60), MISSING, error)
            self.assertIn(b"cannot write to standard output", error)
            self.succeed("verify", path("pipe.card"))
            os.unlink(path("pipe.card"))

    def test_termination_keeps_the_card(self):
        for arguments in (["run", "-p", "Hi"], chat("-p", "Hi")):
            process = subprocess.Popen(words_of([*arguments, *ENDLESS, "-o", path("term.card")]), env=environment,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            process.stdout.read(1)  # an answer has begun
            process.terminate()
            with process:
                process.communicate(timeout=60)
            self.assertEqual(process.returncode, INTERRUPTED)
            self.assertEqual(self.report("info", path("term.card"))["segments"][-1]["role"], "generated")
            os.unlink(path("term.card"))

    def test_long_reading_is_taken_back(self):
        (folder / "long.txt").write_text(DOCUMENT * 80, encoding="utf-8")
        self.succeed("pack", "-m", path("long.gguf"), "-f", path("doc.txt"), "-o", path("long.card"))
        for cards in ([], ["--card", path("long.card")]):
            with self.subTest(cards=cards):
                self.take_back(cards)

    def take_back(self, cards):
        terminal, side = pty.openpty()  # progress is shown on terminals only
        self.addCleanup(os.close, terminal)
        common = ["-m", path("long.gguf"), *GREEDY, *cards]
        command = chat(*common, "-c", "32768", "-f", path("long.txt"), "-o", path("taken.card"))
        process = subprocess.Popen(words_of(command), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=side)
        self.addCleanup(process.kill)
        os.close(side)
        shown = b""
        while not re.search(rb"reading \[=* *\] [1-9]\d*/", shown):
            shown += os.read(terminal, 4096)
        self.assertEqual(b"mode: fused" in shown, bool(cards), shown)
        process.send_signal(signal.SIGINT)
        answer, _ = process.communicate(b"Hi\n", timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(answer, self.execute(*chat(*common), stdin=b"Hi\n").stdout)
        self.assertEqual([s["role"] for s in self.report("info", path("taken.card"))["segments"]], ["user", "generated"])
        # The card is of what was said after all, whatever it follows.
        self.assertEqual(self.report("run", *common, "--card", path("taken.card"), "-p", "x")["cards"],
                         [*cards[1:], path("taken.card")])


class TerminalTest(ChatTest):
    def test_an_answer_is_stopped_and_the_next_one_follows(self):
        terminal = Terminal(self, *chat(*ENDLESS, "-o", path("stop.card")))
        terminal.wait_for(rb"/exit leaves\.\r\n> ")
        terminal.type("Hello\n")
        terminal.wait_for(rb"tokens\r\x1b\[K[^r]")  # the answer itself, which begins with another letter
        terminal.type("\x03")
        terminal.wait_for(rb"\n> ")
        terminal.type("Go on\n")
        terminal.wait_for(rb"Go on\r\n(.|\n)*\n> ")
        terminal.type("\x04")
        self.assertEqual(terminal.exit_code(), 0)
        segments = self.report("info", path("stop.card"))["segments"]
        self.assertEqual([s["role"] for s in segments], ["user", "generated"] * 2)
        self.succeed("verify", path("stop.card"))

    def test_a_signal_at_the_end_of_the_reading_stops_the_answer(self):
        terminal = Terminal(self, *chat(*ENDLESS, "-o", path("late.card")))
        terminal.wait_for(rb"/exit leaves\.\r\n> ")
        terminal.type("\x13Hello\n")  # Ctrl-S: the program waits as it says that all is read
        terminal.wait_until_it_sleeps()
        terminal.type("\x03")  # and lets it go on
        terminal.wait_for(rb"\n> ")
        terminal.type("\x04")
        self.assertEqual(terminal.exit_code(), 0)
        answer = self.report("info", path("late.card"))["segments"][-1]
        self.assertEqual(answer["role"], "generated")
        self.assertLess(answer["tokens"], 100)

    def test_leaving(self):
        for leave, code in (("\x04", 0), ("/exit\n", 0), ("\x03", INTERRUPTED)):
            terminal = Terminal(self, *chat(*GREEDY, "-o", path("leave.card")))
            terminal.wait_for(rb"> ")
            terminal.type("Hello\n")
            terminal.wait_for(rb"Hello\r\n(.|\n)*\n> ")
            terminal.type(leave)
            self.assertEqual(terminal.exit_code(), code, leave)
            self.succeed("verify", path("leave.card"))
            os.unlink(path("leave.card"))


if __name__ == "__main__":
    main()
