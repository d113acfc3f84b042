#!/usr/bin/env python3
"""tools/check_includes.py accepts a tree that keeps the rules and reports each violation."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
sys.dont_write_bytecode = True
import check_includes  # noqa: E402

CMAKE = """qkv_module(base DEPS fmt::fmt)
qkv_module(quant DEPS base)
qkv_module(card DEPS quant base nlohmann_json::nlohmann_json)
qkv_module(policy DEPS quant base)
qkv_module(runtime DEPS policy card quant base PRIVATE_DEPS qkv::llama SINGLE_TEST)
qkv_module(eval DEPS runtime base)
"""
GOOD = {
    "include/qkvshare/status.h": '#pragma once\n#include <string>\n#include "qkvshare/code.h"\n',
    "src/base/hash.h": '#pragma once\n#include <fmt/format.h>\n#include "qkvshare/status.h"\n',
    "src/card/card.cc": '#include <nlohmann/json.hpp>\n#include "quant/tile.h"\n',
    "src/card/card_test.cc": '#include <gtest/gtest.h>\n#include "tests/tiny_model.h"\n',
    "src/runtime/model.cc": '#include "llama.h"\n#include "chat.h"\n#include "card/card.h"\n#include <ggml.h>\n',
    "tests/tiny_model.cc": '#include "tests/tiny_model.h"\n#include <gguf.h>\n',
    "bench/quant.cc": '#include "quant/tile.h"\n',
}
BAD = {
    "include/qkvshare/a.h": ["#include <string>", '#pragma once\n#include "base/hash.h"',
                             "#pragma once\n#include <sodium.h>"],
    "src/base/a.h": ["#include <string>"],
    "src/base/a.cc": ['#include "quant/tile.h"', '#include "../base/hash.h"', '#include "hash.h"',
                      '#include "tests/tiny_model.h"', "#include <nlohmann/json.hpp>"],
    "src/card/a.cc": ['#include "policy/policy.h"', "#include <ggml.h>", '#include "runtime/model.h"'],
    "src/policy/a.cc": ['#include "card/card.h"', "#  include <nlohmann/json.hpp>"],
    "src/eval/a.cc": ['#include "llama.h"', '#include "common.h"', '#include "eval/../card/card.h"'],
    "src/eval/a_test.cc": ['#include "llama.h"'],
    "src/stray/a.cc": ["#include <string>"],
    "bench/a.cc": ['#include "llama.h"'],
    "tests/a_test.cc": ['#include "tiny_model.h"'],
}


class CheckIncludesTest(unittest.TestCase):
    def check(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "CMakeLists.txt").write_text(CMAKE, encoding="utf-8")
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            return check_includes.check_tree(root)

    def test_accepts_good_tree(self):
        self.assertEqual(self.check(GOOD), [])

    def test_reports_each_violation_once(self):
        for name, texts in BAD.items():
            for text in texts:
                with self.subTest(file=name, text=text):
                    errors = self.check({**GOOD, name: text + "\n"})
                    self.assertEqual(len(errors), 1, errors)
                    self.assertTrue(errors[0].startswith(name + ":"), errors)


if __name__ == "__main__":
    unittest.main()
