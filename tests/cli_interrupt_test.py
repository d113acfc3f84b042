#!/usr/bin/env python3
"""Ctrl-C."""

import os
import pty
import re
import select
import signal
import subprocess
import time

from cli_support import INTERRUPTED, DOCUMENT, CliTest, environment, folder, main, path, setUpModule, words_of


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
    main()
