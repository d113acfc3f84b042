#!/usr/bin/env python3
"""qkvshare agents check."""

from pathlib import Path

from cli_support import MISSING, USAGE, CliTest, folder, main, path, setUpModule

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "agents"
LOOP = """
defaults: {predict: 9, max_bytes: 70000}
agents:
  reader: {prompt: Read., predict: 0, bits: 4.5}
  writer: {prompt: Write., shares: generated, placement: worker}
  critic: {prompt: Speak., policy: topology}
edges:
  - {from: reader, to: writer}
  - {from: [reader, writer], to: critic}
  - {from: critic, to: writer, rounds: 2}
"""


class AgentsTest(CliTest):
    def write(self, text):
        (folder / "t.yaml").write_text(text, encoding="utf-8")
        return path("t.yaml")

    def test_table(self):
        lines = [line.split("  ") for line in self.succeed("agents", "check", self.write(LOOP)).splitlines()]
        rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
        self.assertEqual(rows, [
            ["turn", "agent", "takes from", "gives to", "budget", "placement"],
            ["reader", "reader", "-", "writer.1, critic.1, writer.2, critic.2", "4.5 bits", "same"],
            ["writer.1", "writer", "reader", "critic.1", "70000 bytes", "worker"],
            ["critic.1", "critic", "reader, writer.1", "writer.2", "70000 bytes", "same"],
            ["writer.2", "writer", "reader, critic.1", "critic.2", "70000 bytes", "worker"],
            ["critic.2", "critic", "reader, writer.2", "-", "70000 bytes", "same"]])

    def test_json(self):
        report = self.report("agents", "check", self.write(LOOP))
        self.assertEqual((report["agents"], report["file"], len(report["turns"])), (3, path("t.yaml"), 5))
        self.assertEqual(report["turns"][3], {
            "turn": "writer.2", "agent": "writer", "level": 3, "takes": ["reader", "critic.1"], "gives": ["critic.2"],
            "shares": ["generated"], "readers": [{"agent": "critic", "distance": 1}], "policy": "uniform", "predict": 9,
            "placement": "worker", "max_bytes": 70000})
        self.assertEqual((report["turns"][0]["bits"], report["turns"][2]["policy"]), (4.5, "topology"))

    def test_examples(self):
        examples = sorted(EXAMPLES.glob("*.yaml"))
        self.assertGreaterEqual(len(examples), 3)
        for example in examples:
            with self.subTest(example=example.name):
                self.assertIn("turn", self.succeed("agents", "check", example))
                self.assertGreaterEqual(len(self.report("agents", "check", example)["turns"]), 5)

    def test_errors(self):
        self.fail_with(USAGE, "agents", says="--help")
        self.fail_with(USAGE, "agents", "check", says="file")
        self.fail_with(MISSING, "agents", "check", path("none.yaml"), says="none.yaml")
        file = self.write("agents:\n  a: {prompt: x, bits: 1}\n")
        self.fail_with(USAGE, "agents", "check", file, says=f"{file}:2:24: 'bits' is a number from 2 to 16")
        file = self.write(LOOP.replace(", rounds: 2", ""))
        self.fail_with(USAGE, "agents", "check", file, says=f"{file}:10:5: writer -> critic -> writer is a cycle")
        file = self.write("inputs: {x: {file: none.txt}}\nagents: {a: {prompt: x}}\n")
        self.fail_with(MISSING, "agents", "check", file, says=[f"{file}:1:20: ", "none.txt"])


if __name__ == "__main__":
    main()
