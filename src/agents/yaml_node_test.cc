#include "agents/yaml_node.h"

#include <gtest/gtest.h>

#include <string>

namespace qkvshare {
namespace {

using Kind = YamlNode::Kind;

YamlNode Parse(const std::string& text) {
  const Result<YamlNode> node = ParseYaml(text, "f");
  EXPECT_TRUE(node) << node.status().message();
  return node ? *node : YamlNode();
}

std::string ErrorOf(const std::string& text) {
  const Result<YamlNode> node = ParseYaml(text, "f");
  return node ? "none" : node.status().message();
}

std::string Begin(const std::string& text, size_t characters) { return ErrorOf(text).substr(0, characters); }

TEST(YamlNodeTest, ValuesKnowWhatAndWhereTheyAre) {
  const YamlNode root = Parse("a: 4\nb:\n  - x\n  - \"5\"\nc: {d: , e: [1]}\nf: |\n  two\n  lines\n");
  ASSERT_EQ(root.kind, Kind::kMap);
  ASSERT_EQ(root.keys.size(), 4U);
  EXPECT_EQ(root.keys[1].text, "b");
  EXPECT_EQ(root.keys[1].place, (Place{2, 1}));
  EXPECT_EQ(root.items[0].kind, Kind::kPlain);
  EXPECT_EQ(root.items[0].place, (Place{1, 4}));
  ASSERT_EQ(root.items[1].kind, Kind::kList);
  EXPECT_EQ(root.items[1].items[0].place, (Place{3, 5}));
  EXPECT_EQ(root.items[1].items[1].kind, Kind::kQuoted);
  EXPECT_EQ(root.items[1].items[1].text, "5");
  EXPECT_EQ(root.items[2].items[0].kind, Kind::kNull);
  EXPECT_EQ(root.items[2].items[0].place, root.items[2].keys[0].place);
  EXPECT_EQ(root.items[2].items[1].items[0].text, "1");
  EXPECT_EQ(root.items[3].kind, Kind::kQuoted);
  EXPECT_EQ(root.items[3].text, "two\nlines\n");
}

TEST(YamlNodeTest, JsonIsYaml) {
  const YamlNode root = Parse("{\n\t\"a\":{\"b\":[1,\"x\\n\\u00e9\\/\"]},\n\t\"c\":null\n}\n");
  ASSERT_EQ(root.keys.size(), 2U);
  EXPECT_EQ(root.items[0].items[0].items[0].text, "1");
  EXPECT_EQ(root.items[0].items[0].items[1].text, "x\n\u00e9/");
  EXPECT_EQ(root.items[1].kind, Kind::kNull);
}

TEST(YamlNodeTest, NothingIsNull) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n", "~"}) EXPECT_EQ(Parse(text).kind, Kind::kNull);
}

TEST(YamlNodeTest, WhatIsNotReadIsRefusedByItsPlace) {
  EXPECT_EQ(ErrorOf("a: 1\nb: 2\na: 3\n"), "f:3:1: 'a' is there twice, first on line 1; leave one out or rename it");
  EXPECT_EQ(Begin("a: &x 1\nb: *x\n", 6), "f:1:4:");
  EXPECT_NE(ErrorOf("a: &x 1\n").find("anchors and aliases"), std::string::npos);
  EXPECT_EQ(ErrorOf("a: !!str 1\n"), "f:1:4: tags (!name) are not read; leave it out, or put the text in quotes");
  EXPECT_EQ(ErrorOf("a: !x [1]\n"), "f:1:4: tags (!name) are not read; leave it out, or put the text in quotes");
  EXPECT_EQ(ErrorOf("a: 1\n---\nb: 2\n"), "f:2:1: a second document starts here; leave it and the '---' out");
  EXPECT_EQ(ErrorOf("a: 1\n: 2\n"), "f:2:1: a name is missing before ':'");
  EXPECT_EQ(Begin("a: 1\n? [b]\n: 2\n", 24), "f:2:3: a list or map sta");
  EXPECT_EQ(ErrorOf("a: \"x\\0y\"\n"), "f:1:4: a zero byte in a text; leave it out");
}

TEST(YamlNodeTest, WhatIsNoYamlIsRefusedByItsPlace) {
  EXPECT_EQ(Begin("a: b: c\n", 14), "f:1:5: not YAM");
  EXPECT_EQ(Begin("a: [1, 2\nb: 3\n", 4), "f:2:");
  EXPECT_EQ(Begin("a:\n\tb: 1\n", 4), "f:2:");
  EXPECT_EQ(Begin("{\"a\": \"\\ud83d\\ude00\"}", 4), "f:1:");
  EXPECT_NE(ErrorOf("a: b: c\n").find("check indentation, colons and quotes"), std::string::npos);
}

TEST(YamlNodeTest, CharactersThatAreNoTextAreRefused) {
  EXPECT_EQ(ErrorOf("a: 1\nb: x\x04y\n"), "f:2:5: a control character (byte 0x04); leave it out");
  EXPECT_EQ(ErrorOf(std::string("a: 1\0b: 2", 9)), "f:1:5: a control character (byte 0x00); leave it out");
  EXPECT_EQ(Begin("a: 1\nb: \xff\n", 37), "f:2:1: the text is not UTF-8 at byte ");
}

TEST(YamlNodeTest, SizesHaveLimits) {
  const auto code_of = [](const std::string& text) { return ParseYaml(text, "f").status().code(); };
  EXPECT_EQ(code_of(std::string(kMaxYamlBytes, '\n')), StatusCode::kOk);
  EXPECT_EQ(code_of(std::string(kMaxYamlBytes + 1, '\n')), StatusCode::kOutOfRange);
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(code_of(nested(kMaxYamlDepth)), StatusCode::kOk);
  EXPECT_EQ(ErrorOf(nested(kMaxYamlDepth + 1)), "f:1:17: lists and maps within each other more than 16 deep");
  EXPECT_EQ(code_of(nested(kMaxYamlBytes / 2)), StatusCode::kOutOfRange);
  std::string dashes;
  for (size_t i = 0; i < kMaxYamlBytes / 2; ++i) dashes += "- ";
  EXPECT_EQ(code_of(dashes), StatusCode::kOutOfRange);
  std::string list = "[";
  for (size_t i = 0; i < kMaxYamlValues; ++i) list += "1,";
  EXPECT_EQ(code_of(list + "]"), StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace qkvshare
