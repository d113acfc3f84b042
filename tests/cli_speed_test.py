#!/usr/bin/env python3
"""qkvshare eval speed: on a tiny model, whose times mean nothing, it measures every way and keeps its contexts."""

import json
import shutil
import subprocess

from cli_support import DOCUMENT, MISSING, USAGE, CliTest, folder, main, path, setUpModule, write_model


class SpeedTest(CliTest):
    def setUp(self):
        shutil.rmtree(folder / "cache" / "bench", ignore_errors=True)
        (folder / "long.txt").write_text(DOCUMENT * 2, encoding="utf-8")

    def check_memory(self, depth):
        memory = depth["receiver_bytes"]
        # llama.cpp rounds 64 tokens up to 256 rows, of 2 layers with 2 heads of 64 keys and 64 values in FP16. Every
        # receiver has at least these; what else there is, another allocator or a sanitizer may change.
        self.assertEqual(memory["own_rows"], 256 * 2 * 2 * 128 * 2)
        for kind in ("fused", "restored", "empty"):
            self.assertGreater(memory[kind], 0.9 * memory["own_rows"], kind)

    def test_speed(self):
        flags = ["eval", "speed", "-m", path("a.gguf"), "-t", "1", "-f", path("long.txt"), "--depth", "80,200",
                 "--repeats", "1"]
        report = self.report(*flags, "-o", path("speed.json"))
        self.assertEqual(report, json.loads((folder / "speed.json").read_text()))
        self.assertEqual([depth["depth"] for depth in report["depths"]], [80, 200])
        self.assertRegex(report["date"], r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")
        self.assertEqual((report["threads"], report["bits"], report["repeats"]), (1, 4, 1))
        self.assertEqual(set(report["machine"]), {"cpu", "cores"})
        self.assertIn("CPU", report["llama_cpp_system"])
        for key in ("model", "kernels", "qkvshare", "llama_cpp"):
            self.assertTrue(report[key], key)
        for depth in report["depths"]:
            tests = {test["test"]: test["ways"] for test in depth["tests"]}
            self.assertEqual(set(tests["decode"]), {"fused", "F16", "Q8_0", "Q4_0", "no card", "llama.cpp"})
            self.assertEqual(set(tests["decode, no card"]), {"no card", "llama.cpp"})
            self.assertEqual(set(tests["first token"]), {"hand-over", "attached", "warm F16", "F16 state", "Q8_0 state",
                                                         "Q4_0 state"})
            for ways in tests.values():
                for times in ways.values():
                    self.assertTrue(0 < times["least_us"] <= times["median_us"] <= times["most_us"])
                    self.assertGreater(times["ratio"], 0)
            self.assertGreater(depth["prefill_us"], 0)
            attention = depth["attention"]
            self.assertTrue(0 < attention["card_bytes_read"] < depth["card_bytes"])
            self.assertGreater(attention["machine_bytes_per_s"], 1e8)
            self.assertGreaterEqual(attention["bytes_per_s"], 0)
            self.assertEqual(depth["left_out"], {})
            self.check_memory(depth)
        kept = sorted((folder / "cache" / "bench").glob("*"))
        self.assertEqual(len(kept), 4)  # a context and its prefill's time at each depth, and nothing else
        text = self.succeed(*flags)
        for word in ("80 tokens: card", "hand-over", "prefill of the context", "attention over the context", "own rows",
                     "0.1.0"):
            self.assertIn(word, text)
        self.assertEqual(sorted((folder / "cache" / "bench").glob("*")), kept)
        self.fail_with(MISSING, *flags, "-o", path("none/speed.json"), says="none")
        (folder / "file").touch()
        self.fail_with(MISSING, *flags, "--json", QKV_CACHE=path("file/cache"), says=path("file"))
        self.fail_with(MISSING, "eval", "speed", "-m", path("a.gguf"), "-f", path("none.txt"), says="none.txt")

    def test_some_tests(self):
        flags = ["eval", "speed", "-m", path("a.gguf"), "-t", "1", "-f", path("long.txt"), "--depth", "80", "--repeats", "1"]
        report = self.report(*flags, "--tests", "no-card,memory")
        self.assertEqual(report["tests"], ["no-card", "memory"])
        depth = report["depths"][0]
        self.assertEqual([(test["test"], test["runs"]) for test in depth["tests"]],
                         [("decode, no card", 4), ("suffix 32, no card", 4)])
        self.check_memory(depth)
        self.assertNotIn("attention", depth)
        text = self.succeed(*flags, "--tests", "no-card")
        self.assertIn("llama.cpp  ", text)
        for word in ("own rows", "attention over", "hand-over"):
            self.assertNotIn(word, text)
        self.fail_with(USAGE, *flags, "--tests", "no-cards", says=("no-cards", "no-card", "first-token"))

    def test_files_of_killed_runs(self):
        killed = subprocess.Popen(["true"])
        killed.wait()
        left = folder / "cache" / "bench" / f"run-{killed.pid}"
        left.mkdir(parents=True)
        (left / "F16.state").write_text("rows")
        self.succeed("eval", "speed", "-m", path("a.gguf"), "-t", "1", "-f", path("long.txt"), "--depth", "80",
                     "--repeats", "1", "--tests", "no-card")
        self.assertEqual(list(left.parent.glob("run-*")), [])

    def test_heads_of_no_quantized_cache(self):
        write_model("wide", "key_dim=80")
        flags = ["eval", "speed", "-m", path("wide.gguf"), "-t", "1", "-f", path("long.txt"), "--depth", "80",
                 "--repeats", "1", "--tests", "decode"]
        depth = self.report(*flags)["depths"][0]
        self.assertEqual(set(depth["tests"][0]["ways"]), {"fused", "F16", "no card", "llama.cpp"})
        self.assertEqual(set(depth["left_out"]), {"Q8_0", "Q4_0"})
        text = self.succeed(*flags)
        self.assertIn("without Q4_0: cache type q4_0 takes heads of a multiple of 32 values", text)

    def test_flags_that_do_not_apply(self):
        help_text = self.succeed("eval", "speed", "--help")
        self.assertIn("--ubatch-size", help_text)
        for flag, value in (("--ctx-size", "512"), ("--cache-type-k", "q8_0"), ("--cache-type-v", "q8_0"),
                            ("--flash-attn", "off"), ("--gpu-layers", "1")):
            self.assertNotIn(flag, help_text)
            self.fail_with(USAGE, "eval", "speed", "-m", path("a.gguf"), "-f", path("long.txt"), flag, value, says=flag)

    def test_resume(self):
        flags = ["eval", "speed", "-m", path("a.gguf"), "-t", "1", "-f", path("long.txt"), "--tests", "no-card", "--resume"]
        target = folder / "resumed.json"
        once = self.report(*flags, "--repeats", "1", "--depth", "80", "-o", target)
        # The same depth twice in one run, too: it is measured once.
        done = self.execute(*flags, "--repeats", "1", "--depth", "200,80,200", "-o", target)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.decode(), "80 tokens: measured already\n200 tokens: measured already\n")
        both = json.loads(target.read_text())
        self.assertEqual([depth["depth"] for depth in both["depths"]], [80, 200])
        self.assertEqual(both["depths"][0], once["depths"][0])
        self.fail_with(USAGE, *flags, "--repeats", "2", "-o", target, says=("resumed.json", '"repeats" differs'))
        once_more = [*flags, "--repeats", "1", "--depth", "80,200", "-o", target]
        for flag, value, key in (("--rope-freq-base", "20000", "rope_freq_base"),
                                 ("--rope-freq-scale", "0.5", "rope_freq_scale"), ("--ubatch-size", "64", "ubatch")):
            self.fail_with(USAGE, *once_more, flag, value, says=f'"{key}" differs')
        (folder / "long.txt").write_text(DOCUMENT * 2 + "!", encoding="utf-8")
        self.fail_with(USAGE, *once_more, says='"text_digest" differs')
        self.assertEqual(json.loads(target.read_text()), both)
        target.write_text("[]")
        self.fail_with(USAGE, *flags, "-o", target, says="no report of eval speed")
        target.unlink()
        self.fail_with(USAGE, *flags, says="--output")


if __name__ == "__main__":
    main()
