#!/usr/bin/env python3
"""Chains of cards: the parents of a delta card are found beside it, and `flatten` makes one card of them."""

import shutil
from pathlib import Path

from cli_support import MISSING, QUESTION, REFUSED, USAGE, CliTest, folder, main, path, setUpModule

GREEDY = ["-n", "4", "--temp", "0"]
CHAIN = ["doc4.card", "second.card", "third.card"]


class ChainTest(CliTest):
    @classmethod
    def setUpClass(cls):
        test = cls()
        test.succeed("run", "--card", path("doc4.card"), "-p", QUESTION, *GREEDY, "-o", path("second.card"), "--agent", "B")
        test.succeed("run", "--card", path("doc4.card"), "--card", path("second.card"), "-p", " Why?", *GREEDY, "-o",
                     path("third.card"), "--agent", "C")

    def copy(self, name, *files):
        (folder / name).mkdir()
        self.addCleanup(shutil.rmtree, folder / name)
        for file in files:
            shutil.copy(path(file), folder / name)
        return path(name)

    def test_a_delta_card_alone_brings_its_parents(self):
        cards = [flag for card in CHAIN for flag in ("--card", path(card))]
        given = self.report("run", *cards, "-p", QUESTION, *GREEDY)
        found = self.report("run", "--card", path("third.card"), "-p", QUESTION, *GREEDY)
        for key in ("text", "cached_tokens", "evaluated_tokens", "mode", "cards"):
            self.assertEqual(found[key], given[key], key)
        self.assertEqual(found["cards"], [path(card) for card in CHAIN])
        done = self.execute("run", "--card", "third.card", "-p", QUESTION, *GREEDY)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.decode().splitlines()[:2], ["found: doc4.card, which second.card continues",
                                                                 "found: second.card, which third.card continues"])
        chat = self.execute("run", "-i", "--card", path("third.card"), *GREEDY, stdin=b"Hello\n")
        self.assertEqual(chat.returncode, 0, chat.stderr)
        self.assertIn(b"found: ", chat.stderr)

    def test_a_missing_parent_is_named(self):
        content_id = self.report("info", path("second.card"))["content_id"]
        place = self.copy("alone", "doc4.card", "third.card")
        for command in (["run", "-p", "x", "--card"], ["flatten", "-o", path("no.card")]):
            self.fail_with(MISSING, *command, place + "/third.card",
                           says=(content_id, "alone/third.card continues", "put it there"))

    def test_what_is_found_is_checked(self):
        place = Path(self.copy("damaged", *CHAIN))
        good = (place / "second.card").read_bytes()
        (place / "second.card").write_bytes(good[:-70] + bytes([good[-70] ^ 1]) + good[-69:])
        self.fail_with(REFUSED, "run", "-p", "x", "--card", place / "third.card", says=("second.card", "rule 13"))

    def test_a_card_of_the_chain_is_not_overwritten(self):
        before = {card: (folder / card).read_bytes() for card in CHAIN}
        for target in CHAIN:
            self.fail_with(USAGE, "run", "--card", path("third.card"), "-p", "x", "-n", "1", "-o", path(target),
                           says="is an input and would be overwritten")
            self.fail_with(USAGE, "flatten", path("third.card"), "-o", path(target),
                           says="is an input and would be overwritten")
        self.assertEqual(before, {card: (folder / card).read_bytes() for card in CHAIN})

    def test_delta_cards_have_their_parents_profile(self):
        infos = [self.report("info", path(card)) for card in CHAIN]
        self.assertEqual([info["profile"] for info in infos], ["measured", "inherited", "inherited"])
        self.assertEqual([info["exact_tokens"] for info in infos], [4, 0, 0])
        self.assertEqual([info["hop"] for info in infos], [0, 1, 2])

    def test_flatten(self):
        infos = [self.report("info", path(card)) for card in CHAIN]
        flat = self.report("flatten", path("third.card"), "-o", path("flat.card"))
        self.assertEqual(flat["cards"], [path(card) for card in CHAIN])
        self.assertEqual(flat["tokens"], infos[-1]["first_token"] + infos[-1]["tokens"])
        self.succeed("verify", path("flat.card"))
        info = self.report("info", path("flat.card"))
        for key in ("content_id", "tokens", "levels", "code_bits", "profile"):
            self.assertEqual(info[key], flat[key], key)
        self.assertEqual((info["parent"], info["first_token"], info["hop"], info["sender"]), ("", 0, 2, "C"))
        self.assertEqual(info["policy"], "flattened: uniform")
        self.assertEqual([segment["parent"] for segment in info["segments"]],
                         [infos[0]["content_id"], *[infos[1]["content_id"]] * 2, *[infos[2]["content_id"]] * 2])
        # Restored, the rows are the same bytes.
        runs = [self.report("run", "--card", path(card), "--inject", "restore", "-p", QUESTION, *GREEDY)
                for card in ("third.card", "flat.card")]
        self.assertEqual(runs[0]["text"], runs[1]["text"])
        self.assertEqual(runs[0]["cached_tokens"], runs[1]["cached_tokens"])
        # The cards themselves give the same card, and the next hop continues it.
        again = self.report("flatten", *[path(card) for card in CHAIN], "-o", path("again.card"), "--verify")
        self.assertEqual(again["content_id"], flat["content_id"])
        self.succeed("run", "--card", path("flat.card"), "-p", QUESTION, *GREEDY, "-o", path("next.card"))
        text = self.succeed("flatten", path("next.card"), "-o", path("all.card"))
        self.assertRegex(text, r"all\.card: \d+ tokens of 2 cards, ")

    def test_a_card_of_what_follows_several_brings_them_all(self):
        exact = ["--bits", "16"]
        for name, prompt in (("left.card", QUESTION), ("right.card", " Why?")):
            self.succeed("run", "--card", path("doc16.card"), "-p", prompt, *GREEDY, "-o", path(name), *exact)
        sides = ["--card", path("left.card"), "--card", path("right.card")]
        joined = self.report("run", *sides, "-p", " And so:", *GREEDY, "-o", path("joined.card"), *exact)
        cards = [path(card) for card in ("doc16.card", "left.card", "right.card")]
        self.assertEqual(joined["cards"], cards)
        infos = [self.report("info", card) for card in cards]
        info = self.report("info", path("joined.card"))
        self.assertEqual(info["context"], [{"card": i["content_id"], "tokens": i["tokens"]} for i in infos])
        self.assertEqual((info["parent"], info["first_token"], info["hop"]),
                         (infos[2]["content_id"], sum(i["tokens"] for i in infos), 2))
        self.assertIn("the last of 3 cards side by side", self.succeed("info", path("joined.card")))
        self.succeed("verify", path("joined.card"))
        # From the card alone, in a folder with the others.
        place = self.copy("all", "doc16.card", "left.card", "right.card", "joined.card")
        runs = [self.report("run", *flags, "-p", QUESTION, *GREEDY, "--inject", way)
                for flags in (["--card", place + "/joined.card"], [*sides, "--card", path("joined.card")])
                for way in ("fused", "restore")]
        for key in ("text", "cached_tokens", "evaluated_tokens"):
            self.assertEqual(len({run[key] for run in runs}), 1, key)
        self.assertEqual(runs[0]["cards"], [f"{place}/{name}.card" for name in ("doc16", "left", "right", "joined")])
        done = self.execute("run", "--card", place + "/joined.card", "-p", QUESTION, *GREEDY)
        self.assertEqual(done.stderr.decode().count(f"which {place}/joined.card continues"), 3, done.stderr)
        self.fail_with(REFUSED, "flatten", path("joined.card"), "-o", path("no.card"), says="3 cards side by side")
        (folder / "all" / "left.card").unlink()
        self.fail_with(MISSING, "run", "-p", "x", "--card", place + "/joined.card", says=infos[1]["content_id"])

    def test_what_cannot_be_flattened(self):
        self.fail_with(REFUSED, "flatten", path("doc4.card"), path("doc16.card"), "-o", path("no.card"),
                       says="starts a context")
        self.fail_with(USAGE, "flatten", path("third.card"), path("second.card"), "-o", path("no.card"),
                       says="a chain starts with")
        self.fail_with(MISSING, "flatten", path("none.card"), "-o", path("no.card"), says="none.card")
        self.fail_with(USAGE, "flatten", path("third.card"), says="--output")
        self.fail_with(USAGE, "flatten", "-o", path("no.card"), says="card")
        self.fail_with(USAGE, "flatten", path("third.card"), "-o", path("doc.txt"), says="not a card")


if __name__ == "__main__":
    main()
