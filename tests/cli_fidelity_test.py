#!/usr/bin/env python3
"""qkvshare eval fidelity."""

import json
import signal
import subprocess
import time

from cli_support import DOCUMENT, INTERRUPTED, QUESTION, CliTest, environment, folder, main, path, setUpModule, words_of

ARMS = ["--arm", "uniform@4", "--arm", "roundtrip:f16", "--arm", "floor"]
PROMPTS = [
    {"id": "mill", "context": [{"role": "old", "text": DOCUMENT[:200]}, {"role": "new", "text": DOCUMENT[200:400]}],
     "turns": [{"turn": QUESTION, "answer": " The children."},
               {"id": "cat", "kind": "part", "instruction": "You count animals. ", "turn": "How many cats?", "roles": ["old"]}]},
    {"context": DOCUMENT[:300], "turns": [QUESTION]},
]


def write_prompts(name, prompts):
    (folder / name).write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts), encoding="utf-8")
    return path(name)


class FidelityTest(CliTest):
    def setUp(self):
        self.prompts = write_prompts("prompts.jsonl", PROMPTS)
        self.common = ["eval", "fidelity", "--set", self.prompts, "-n", "4"]

    def lines(self, name):
        lines = [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        return lines[0], [line for line in lines[1:] if "produced_by" not in line]

    def test_own_prompts(self):
        report = self.report(*self.common, *ARMS, "-o", path("own.jsonl"))
        self.assertEqual(report["made_by"], {"set": "file"})
        self.assertEqual(report["prompts"], 2)
        header, lines = self.lines("own.jsonl")
        self.assertEqual(header["qkvshare_fidelity"], 2)
        self.assertEqual([arm["arm"] for arm in header["arms"]], ["uniform@4", "roundtrip:f16/f16", "floor"])
        self.assertEqual([(line["prompt"], line["continuation"]) for line in lines[::3]],
                         [("mill", "1"), ("mill", "cat"), ("prompt 2", "1")])
        self.assertEqual([line["arm"] for line in lines[:3]], ["uniform@4", "roundtrip:f16/f16", "floor"])
        self.assertEqual([line["kind"] for line in lines[::3]], ["turn", "part", "turn"])
        for line in lines:
            self.assertGreater(len(line["kl"]), line["answer_tokens"])
            if line["arm"] != "floor":  # of less than 16 tokens the floor is 0 too
                self.assertEqual(set(line["kl"]) == {0}, line["arm"] == "roundtrip:f16/f16")
        text = self.succeed(*self.common, *ARMS)
        for word in ("uniform@4", "roundtrip:f16/f16", "floor", "mean KL"):
            self.assertIn(word, text)

    def test_goes_on(self):
        flags = [*self.common, *ARMS, "-o", path("on.jsonl")]
        report = self.report(*flags)
        whole = (folder / "on.jsonl").read_bytes()
        (folder / "on.jsonl").write_bytes(whole[:whole.rindex(b'{"prompt":"prompt 2"')])
        self.assertEqual(self.report(*flags), report)
        self.assertEqual((folder / "on.jsonl").read_bytes(), whole)
        self.fail_with(2, *self.common, "--arm", "local@4", "-o", path("on.jsonl"), says=["\"arms\" differs", "another file"])
        write_prompts("prompts.jsonl", PROMPTS[:1])
        self.fail_with(2, *flags, says="\"input\" differs")
        self.fail_with(2, *self.common, *ARMS, "-o", self.prompts, says="prompts.jsonl")

    def test_interrupted(self):
        many = write_prompts("many.jsonl", [{"context": DOCUMENT[i:i + 300], "turns": [QUESTION]} for i in range(30)])
        flags = ["eval", "fidelity", "--set", many, "-n", "4", *ARMS, "-o"]
        process = subprocess.Popen(words_of([*flags, path("stopped.jsonl")]), env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 120
        stopped = folder / "stopped.jsonl"
        while not stopped.exists() or b'{"prompt"' not in stopped.read_bytes():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, error)
        self.assertIn(b"the same command goes on from", error)
        self.assertEqual(output, b"")
        lines = self.lines("stopped.jsonl")[1]
        self.assertEqual(len(lines) % 3, 0)
        self.assertLess(len(lines), 90)
        self.succeed(*flags, path("stopped.jsonl"))
        self.succeed(*flags, path("whole.jsonl"))
        self.assertEqual((folder / "stopped.jsonl").read_bytes(), (folder / "whole.jsonl").read_bytes())

    def test_usual_arms(self):
        done = self.execute(*self.common, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        arms = {row["arm"] for row in json.loads(done.stdout)["summary"]["rows"]}
        self.assertIn("cache:q4_0/q4_0", arms)
        # Of the last prompt's receiver nothing is known.
        self.assertNotIn("topology@4", arms)
        self.assertIn(b"without topology@4: the prompts tell nothing", done.stderr)
        write_prompts("told.jsonl", PROMPTS[:1])
        report = self.report("eval", "fidelity", "--set", path("told.jsonl"), "-n", "4")
        self.assertIn("topology@4", {row["arm"] for row in report["summary"]["rows"]})

    def test_sets(self):
        problem = {"question": "A robe takes 2 bolts. How many do two take?", "answer": "2*2=<<2*2=4>>4\n#### 4"}
        (folder / "problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for _ in range(8)), encoding="utf-8")
        report = self.report("eval", "fidelity", "--set", "gsm8k:" + path("problems.jsonl"), "--context", "300",
                             "--prompts", "2", *ARMS)
        self.assertEqual(report["made_by"], {"set": "gsm8k", "context": 300, "seed": 1, "chat": False})
        for name in ("facts", "receivers"):
            flags = ["eval", "fidelity", "--set", name, "--context", "1200", "--prompts", "1", "-n", "3", "--seed", "4"]
            report = self.report(*flags, "--arm", "topology@4", "--arm", "floor", "-o", path(f"{name}.jsonl"))
            self.assertEqual(report["made_by"], {"set": name, "context": 1200, "seed": 4, "chat": True})
            self.assertGreater(len(self.lines(f"{name}.jsonl")[1]), 4)
        plain = self.report(*flags, "--plain", "--arm", "floor")
        self.assertFalse(plain["made_by"]["chat"])

    def test_wrong_input(self):
        self.fail_with(2, *self.common, "--arm", "best@4", says=["arm best@4", "choose uniform"])
        self.fail_with(2, *self.common, "--arm", "local@4,alpha=0.5", says="alpha counts in")
        self.fail_with(2, *self.common, "--arm", "exact", "--arm", "uniform@16", says="there twice")
        self.fail_with(2, *self.common, "--arm", "topology@4", says=["prompt 2", "nothing is known of the receiver"])
        self.fail_with(2, *self.common, *ARMS, "--against", "local@4", says="local@4")
        self.fail_with(2, "eval", "fidelity", "--set", "fact", says=["fact", "a file of your own"])
        self.fail_with(4, "eval", "fidelity", "--set", path("none.jsonl"), says="none.jsonl")
        self.fail_with(4, *self.common, *ARMS, "-o", path("none/r.jsonl"), says="none")
        for wrong, part in (({"turns": ["a"]}, "no \"context\""), ({"context": "a", "turns": []}, "no list of turns"),
                            ({"context": "a", "turns": [{"turns": "a"}]}, "unknown member \"turns\""),
                            ({"context": "a", "turns": [{"turn": 1}]}, "\"turn\" is no text"),
                            ({"context": ["a"], "turns": ["a"]}, "a section is no object"),
                            ({"context": "a", "turns": [{"turn": "ab", "roles": "old"}]}, "\"roles\" is no list"),
                            ([], "no JSON object")):
            write_prompts("wrong.jsonl", [PROMPTS[0], wrong])
            self.fail_with(2, "eval", "fidelity", "--set", path("wrong.jsonl"), says=["line 2", part])
        write_prompts("wrong.jsonl", [{"context": "abc", "turns": [{"turn": "ab", "roles": ["old"]}]}])
        self.fail_with(2, "eval", "fidelity", "--set", path("wrong.jsonl"), *ARMS, says="no segment of the context")
        write_prompts("long.jsonl", [{"context": DOCUMENT * 6, "turns": ["Why?"]}])
        self.fail_with(5, "eval", "fidelity", "--set", path("long.jsonl"), *ARMS, says="use a smaller --context")


if __name__ == "__main__":
    main()
