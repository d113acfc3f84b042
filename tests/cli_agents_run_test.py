#!/usr/bin/env python3
"""qkvshare agents run."""

import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from cli_support import (INTERRUPTED, MISSING, TOO_LONG, USAGE, CliTest, environment, folder, main, path, setUpModule,
                         words_of, write_model)

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "agents"
CHAIN = """
context: 512
defaults: {bits: 8, predict: 6, temp: 0}
inputs:
  place: {text: the mill}
agents:
  reader: {system: You read., prompt: "The cat is at {place}.", predict: 0}
  writer: {prompt: Where is it, placement: worker}
  editor: {prompt: Say it again}
  other: {prompt: Say nothing, shares: [generated]}
edges:
  - {from: reader, to: writer}
  - {from: writer, to: editor}
  - {from: reader, to: other}
"""

# x hands on its answer and the first tokens of its context; k gets them after y, and again as what j was made on.
PARTS = """
context: 512
defaults: {bits: 8, predict: 6, temp: 0}
agents:
  x: {system: You read., prompt: The cat is at the mill., shares: [generated]}
  y: {prompt: Where is it}
  j: {prompt: Say it again}
  k: {prompt: And once more}
edges:
  - {from: [x, y], to: j}
  - {from: [y, j, x], to: k}
"""


class AgentsRunTest(CliTest):
    def setUp(self):
        for leftover in folder.glob("*.run"):
            shutil.rmtree(leftover)
        (folder / "t.yaml").write_text(CHAIN, encoding="utf-8")

    def start(self, text, *arguments):
        (folder / "t.yaml").write_text(text, encoding="utf-8")
        return subprocess.Popen(words_of(["agents", "run", path("t.yaml"), *arguments]), cwd=folder, env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_what_it_prints(self):
        done = self.execute("agents", "run", path("t.yaml"), "--html", path("t.html"))
        self.assertEqual(done.returncode, 0, done.stderr)
        # What those wrote who hand on to nobody.
        self.assertRegex(done.stdout.decode("utf-8", "replace"), r"(?s)\Aother:\n.*\neditor:\n.*\n\Z")
        notes = done.stderr.decode()
        for line in (r"reader: 0 tokens taken over, \d+ read, 0 written \(read\); .* handed on at 8\.\d+ bits",
                     r"turn +taken over +read +written +ended +handed on +first token +re-prefill +mode",
                     r"writer .* fused, worker", r"tokens taken over, .* handed on; first tokens after .* in all"):
            self.assertRegex(notes, line)
        self.assertEqual(sorted(file.name for file in (folder / "t.run").iterdir()),
                         ["editor.card", "editor.json", "other.card", "other.json", "qkvshare.run", "reader.card", "reader.json", "writer.card", "writer.json"])
        page = (folder / "t.html").read_text(encoding="utf-8")
        self.assertIn("<svg", page)
        self.assertIn("Where is it", page)
        self.assertNotIn("http:", re.sub(r"http://www\.w3\.org/\S+", "", page))
        (folder / "t.html").unlink()

    def test_report(self):
        report = self.report("agents", "run", path("t.yaml"))
        turns = {turn["turn"]: turn for turn in report["turns"]}
        self.assertEqual(list(turns), ["reader", "writer", "other", "editor"])
        self.assertEqual([turns[name]["mode"] for name in turns], ["prefill", "fused", "fused", "fused"])
        self.assertTrue(turns["writer"]["worker"])
        self.assertEqual(turns["reader"]["prompt"], "The cat is at the mill.")
        self.assertEqual(report["totals"]["taken_tokens"], sum(turn["taken_tokens"] for turn in report["turns"]))
        self.assertGreater(turns["editor"]["reprefill_us"], 0)
        for turn in turns.values():
            names = [stage["stage"] for stage in turn["stages"]]
            self.assertEqual(names[-1], "write", names)
            first = [stage["us"] for stage in turn["stages"]
                     if stage["stage"] in ("open", "attach", "prefill", "first_token")]
            self.assertEqual(turn["ttft_us"], sum(first))
        # A card of the run is one like others: whoever has it goes on from there.
        answer = self.report("run", "--card", path("t.run/editor.card"), "--chat", "-p", "And", "-n", "3")
        self.assertEqual(answer["cached_tokens"], turns["editor"]["taken_tokens"] + turns["editor"]["card"]["tokens"])

    def test_a_card_of_parts_goes_on_from_its_file(self):
        (folder / "t.yaml").write_text(PARTS, encoding="utf-8")
        turns = {turn["turn"]: turn for turn in self.report("agents", "run", path("t.yaml"))["turns"]}
        handed = [(card["path"], card["tokens"]) for card in turns["k"]["taken"]]
        self.assertEqual([name for name, _ in handed], ["y.card", "x.card", "x.part1.card", "j.card"])
        self.assertLess(handed[1][1], self.report("info", path("t.run/x.card"))["tokens"])
        alone = ["--card", path("t.run/k.card")]
        given = [flag for name, _ in handed for flag in ("--card", path(f"t.run/{name}"))] + alone
        among = ["--card", path("doc4.card"), *alone]  # found parts are what they were there too
        runs = {(way, flags[1]): self.report("run", *flags, "--chat", "-p", "And", "-n", "3", "--temp", "0", "--inject", way)
                for way in ("fused", "restore") for flags in (alone, given, among)}
        tokens = turns["k"]["taken_tokens"] + turns["k"]["card"]["tokens"]
        for (way, first), run in runs.items():
            before = self.report("info", first)["tokens"] if first == path("doc4.card") else 0
            self.assertEqual(run["cached_tokens"], before + tokens, (way, first))
            if not before:
                self.assertEqual(run["text"], runs[way, alone[1]]["text"])

    def test_the_same_again(self):
        texts = [[turn["text"] for turn in self.report("agents", "run", path("t.yaml"), "--dir", path(name))["turns"]]
                 for name in ("one.run", "two.run")]
        self.assertEqual(*texts)

    def test_resume(self):
        self.succeed("agents", "run", path("t.yaml"))
        self.fail_with(USAGE, "agents", "run", path("t.yaml"), says="--resume")
        report = self.report("agents", "run", path("t.yaml"), "--resume")
        self.assertTrue(all(turn["resumed"] for turn in report["turns"]))
        (folder / "t.yaml").write_text(CHAIN.replace("Say it again", "Say it twice"), encoding="utf-8")
        done = self.execute("agents", "run", path("t.yaml"), "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr.decode(), r"(?m)^editor: done again: ")
        self.assertEqual(done.stderr.count(b"done again"), 1)

    def test_a_run_that_is_interrupted_goes_on(self):
        # With so many tokens the one that ends an answer comes late.
        write_model("endless", "vocab=20000", "context=32768")
        flags = ["-c", "30000", "-m", path("endless.gguf")]
        run = self.start(CHAIN.replace("placement: worker", "placement: worker, predict: 20000"), *flags)
        deadline = time.monotonic() + 120
        while not (folder / "t.run" / "reader.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        run.send_signal(signal.SIGINT)
        out, error = run.communicate(timeout=60)
        self.assertEqual((run.returncode, out), (INTERRUPTED, b""), error)
        self.assertRegex(error.decode(), r"error: agent 'writer', which takes over from reader: .*2 of 4 turns are done.*--resume")
        (folder / "t.yaml").write_text(CHAIN, encoding="utf-8")
        report = self.report("agents", "run", path("t.yaml"), "--resume", *flags)
        self.assertEqual([turn["resumed"] for turn in report["turns"]], [True, False, True, False])

    def test_anchors_of_an_earlier_run(self):
        text = CHAIN.replace("prompt: \"The cat is at {place}.\"", "policy: topology, bits: 5, prompt: \"The cat is at {place}.\"")
        (folder / "t.yaml").write_text(text, encoding="utf-8")
        first = self.report("agents", "run", path("t.yaml"), "--dir", path("one.run"))
        again = self.report("agents", "run", path("t.yaml"), "--dir", path("two.run"), "--anchors-from", path("one.run"))
        self.assertNotIn("anchors", first["turns"][0]["features"])
        self.assertIn("anchors", again["turns"][0]["features"])
        self.fail_with(MISSING, "agents", "run", path("t.yaml"), "--dir", path("three.run"), "--anchors-from",
                       path("none"), says="none")

    def test_examples(self):
        for example in sorted(EXAMPLES.glob("*.yaml")):
            with self.subTest(example=example.name):
                report = self.report("agents", "run", example, "-m", path("long.gguf"), "-c", "16000", "--dir",
                                     path(f"{example.stem}.run"))
                self.assertGreaterEqual(len(report["turns"]), 5)

    def test_errors(self):
        run = ["agents", "run", path("t.yaml")]
        self.fail_with(USAGE, "agents", "run", says="file")
        self.fail_with(MISSING, "agents", "run", path("none.yaml"), says="none.yaml")
        self.fail_with(USAGE, *run, "--html", path("t.yaml"), says="overwritten")
        self.fail_with(USAGE, *run, "--html", path("doc.txt"), says="not a page")
        self.fail_with(USAGE, *run, "--anchors-from", path("t.run"), says="policy topology")
        self.fail_with(USAGE, *run, "--parallel", "0", says="parallel")
        self.fail_with(TOO_LONG, *run, "-c", "20", says=["agent 'reader'", "needed"])


if __name__ == "__main__":
    main()
