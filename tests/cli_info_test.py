#!/usr/bin/env python3
"""qkvshare info and verify."""

from cli_support import CliTest, main, path, setUpModule


class InfoTest(CliTest):
    def test_info(self):
        info = self.report("info", path("doc4.card"))
        self.assertEqual((info["architecture"], info["layers"], info["kv_heads"], info["key_dim"], info["value_dim"]),
                         ("llama", 2, 2, 64, 64))
        self.assertEqual(info["model_name"], "tiny random model")
        self.assertEqual((info["exact_tokens"], info["hop"], info["position_offset"]), (4, 0, 0))
        self.assertEqual(info["rope"], {"base": 10000.0, "scale": 1.0, "dims": 64, "mode": 0})
        self.assertEqual(sum(level["tokens"] for level in info["levels"]), info["tokens"])
        for key in ("content_id", "model_fingerprint", "rope_fingerprint"):
            self.assertRegex(info[key], r"\A[0-9a-f]{64}\Z")
        self.assertRegex(info["created"], r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")
        text = self.succeed("info", path("doc4.card"))
        for word in (info["content_id"], "tiny random model (llama)", f"{info['tokens']}, from position 0", "K4V4",
                     "\nexact ", "prompt", "policy uniform"):
            self.assertIn(word, text)

    def test_verify(self):
        content_id = self.report("info", path("doc4.card"))["content_id"]
        self.assertEqual(self.report("verify", path("doc4.card")),
                         {"card": path("doc4.card"), "valid": True, "content_id": content_id})
        self.assertEqual(self.succeed("verify", path("doc4.card")),
                         f"{path('doc4.card')}: valid, content id {content_id}\n")


if __name__ == "__main__":
    main()
