#!/usr/bin/env python3
"""qkvshare report: from files that the evaluations wrote on tiny models."""

import json
import re

from cli_support import DOCUMENT, MISSING, USAGE, CliTest, folder, main, path
from cli_support import setUpModule as set_up_models


def setUpModule():
    set_up_models()
    (folder / "long.txt").write_text(DOCUMENT * 2, encoding="utf-8")
    problem = json.dumps({"question": "What is 1 and 1?", "answer": "It is 1 + 1 = <<1+1=2>>2.\n#### 2"})
    (folder / "problems.jsonl").write_text(f"{problem}\n" * 12, encoding="utf-8")


class ReportTest(CliTest):
    def fidelity(self, name, *arms, model="a.gguf", seed="1"):
        flags = [flag for arm in arms for flag in ("--arm", arm)]
        self.succeed("eval", "fidelity", "-m", path(model), "--set", "gsm8k:" + path("problems.jsonl"),
                     "--context", "200", "--prompts", "2", "--seed", seed, *flags, "-o", path(name))
        return path(name)

    def test_page_and_markdown(self):
        one = self.fidelity("uniform.jsonl", "uniform@4", "floor")
        two = self.fidelity("local.jsonl", "local@3")
        ttft = path("ttft.jsonl")
        self.succeed("eval", "ttft", "-m", path("a.gguf"), "-t", "1", "-f", path("long.txt"), "--depth", "80,160",
                     "--repeats", "1", "--suffix", "16", "-o", ttft)
        self.succeed("report", one, ttft, two, "-o", path("r.html"), "--markdown", path("r.md"), "--title", "A & B",
                     "--against", "uniform@4")
        html = (folder / "r.html").read_text(encoding="utf-8")
        # Which widths tokens got, of a policy that chose.
        self.assertIn("<h3>Widths of a context", html)
        self.assertRegex(html, r'<details class="map" id="map-0"[^>]*><summary><b>local@3</b>')
        markdown = (folder / "r.md").read_text(encoding="utf-8")
        for word in ("<title>A &amp; B</title>", "gsm8k, 200 tokens", "The noise floor is 0", "uniform@4", "local@3",
                     "Stages of receivers", "card attached", "uniform.jsonl"):
            self.assertIn(word, html)
        self.assertIsNone(re.search(r"https?:|<script|<link|<img|url\(", html))
        self.assertEqual(html.count("<section"), html.count("</section>"))
        compared = markdown[markdown.index("against uniform@4"):].splitlines()
        row = next(line for line in compared if line.startswith("| local@3 |"))
        ratio = float(row.split("|")[2].split()[0])
        means = {arm: self.mean_kl(file, arm) for file, arm in ((one, "uniform@4"), (two, "local@3"))}
        self.assertAlmostEqual(ratio, means["local@3"] / means["uniform@4"], delta=0.0006)  # three decimals
        self.assertEqual((folder / "r.html").stat().st_mode & 0o777, 0o600)

    def test_says_what_is_unfinished(self):
        whole = self.fidelity("whole.jsonl", "uniform@4")
        with open(whole, encoding="utf-8") as opened:
            lines = opened.readlines()
        first = next(json.loads(line)["prompt"] for line in lines if "prompt" in json.loads(line))
        with open(path("part.jsonl"), "w", encoding="utf-8") as part:
            part.writelines(line for line in lines if json.loads(line).get("prompt", first) == first)
        for name, unfinished in (("whole", False), ("part", True)):
            self.succeed("report", path(name + ".jsonl"), "-o", path(name + ".html"), "--markdown", path(name + ".md"))
            for kind in (".html", ".md"):
                text = (folder / (name + kind)).read_text(encoding="utf-8")
                self.assertEqual(name + ".jsonl has 1 of 2 prompts" in text, unfinished, kind)

    def mean_kl(self, file, arm):
        with open(file, encoding="utf-8") as opened:
            lines = [json.loads(line) for line in opened]
        values = [kl for line in lines if line.get("arm") == arm for kl in line["kl"]]
        return sum(values) / len(values)

    def test_refusals(self):
        one = self.fidelity("one.jsonl", "uniform@4")
        other_seed = self.fidelity("seed.jsonl", "local@4", seed="2")
        self.fail_with(USAGE, "report", one, other_seed, "-o", path("no.html"),
                       says=["one.jsonl and ", "seed.jsonl do not go together", '"input" differs'])
        other_model = self.fidelity("model.jsonl", "local@4", model="b.gguf")
        self.fail_with(USAGE, "report", one, other_model, "-o", path("no.html"),
                       says=["one.jsonl", "model.jsonl", '"model_fingerprint" differs'])
        self.fail_with(USAGE, "report", one, one, "-o", path("no.html"), says="once")
        self.fail_with(USAGE, "report", one, says="-o report.html")
        self.fail_with(USAGE, "report", one, "-o", one, says="one.jsonl is an input")
        self.fail_with(USAGE, "report", one, "-o", path("x"), "--markdown", path("x"), says="two names")
        self.fail_with(USAGE, "report", path("doc.txt"), "-o", path("no.html"), says="doc.txt: is no file of results")
        self.fail_with(USAGE, "report", one, "--against", "exact", "-o", path("no.html"), says="'exact'")
        self.fail_with(MISSING, "report", path("none.jsonl"), "-o", path("no.html"), says="none.jsonl")
        self.fail_with(MISSING, "report", one, "-o", path("no/folder.html"), says="folder")


if __name__ == "__main__":
    main()
