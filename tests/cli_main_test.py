#!/usr/bin/env python3
"""Help, version and the list of models."""

import re

from cli_support import MISSING, REFUSED, USAGE, CliTest, folder, main, path, setUpModule


class HelpTest(CliTest):
    def test_every_command_has_an_example(self):
        text = self.succeed("--help")
        self.assertIn("130 interrupted", text)
        commands = re.findall(r"^  (\w+) {2,}\S", text[text.upper().index("SUBCOMMANDS"):], re.MULTILINE)
        self.assertEqual(set(commands), {"pack", "run", "info", "verify", "flatten", "unpack", "calibrate", "models",
                                         "agents", "eval", "report"})
        for command in commands:
            example = rf"Example:\n(  .*\n)*  (.*\| )?qkvshare {command} "
            self.assertRegex(self.succeed(command, "--help"), example, command)

    def test_version(self):
        self.assertRegex(self.succeed("--version"), r"\Aqkvshare \d+\.\d+\.\d+ \(llama\.cpp \S+\)\n\Z")

    def test_dequantize(self):
        target = folder / "floats.gguf"
        self.succeed("models", "dequantize", path("a.gguf"), "-o", target, "--f16")
        card = folder / "floats.card"
        self.succeed("pack", "-m", target, "-p", "one two three", "-o", card)
        self.fail_with(REFUSED, "run", "-m", path("a.gguf"), "--card", card, "-p", "x", says="another model")
        self.succeed("models", "dequantize", target, "-o", target.with_name("again.gguf"))
        self.fail_with(USAGE, "models", "dequantize", target, "-o", target, says="input")
        self.fail_with(USAGE, "models", "dequantize", target, "-o", card, says="not a model")
        self.fail_with(MISSING, "models", "dequantize", path("none.gguf"), "-o", folder / "x.gguf", says="none.gguf")
        (folder / "broken.gguf").write_bytes(b"GGUF and no more")
        self.fail_with(REFUSED, "models", "dequantize", folder / "broken.gguf", "-o", folder / "x.gguf", says="broken")
        self.assertEqual([file.name for file in folder.glob("x.gguf*")], [])

    def test_models(self):
        models = self.report("models", "list")
        self.assertIn("smollm2-135m", [model["name"] for model in models])
        self.assertFalse(any(model["present"] for model in models))  # the cache folder is the test's own
        self.assertIn("Apache-2.0", self.succeed("models", "list"))
        self.assertEqual(self.succeed("models", "path", path("a.gguf")), path("a.gguf") + "\n")


if __name__ == "__main__":
    main()
