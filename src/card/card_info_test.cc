#include "card/card_info.h"

#include <gtest/gtest.h>

namespace qkvshare {
namespace {

CardInfo Example() {
  return {"m",
          "llama",
          "a",
          "uniform",
          "2026-01-02T03:04:05Z",
          "w",
          {{"system", "a", "", 0, 3, {{"r", 2}}}, {"user", "b", "ff", 3, 2}},
          {"attention"},
          "f16",
          "queries"};
}

CardInfo WithContext() {
  CardInfo info = Example();
  info.context = {{Blake2b({}), 4}, {Digest{}, 7}};
  return info;
}

std::string Replace(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(CardInfoTest, RoundTrip) {
  const Result<CardInfo> info = CardInfoFromJson(CardInfoToJson(Example()));
  ASSERT_TRUE(info);
  EXPECT_EQ(*info, Example());
  EXPECT_EQ(*CardInfoFromJson(CardInfoToJson(CardInfo{})), CardInfo{});
  EXPECT_EQ(*CardInfoFromJson(CardInfoToJson(WithContext())), WithContext());
  EXPECT_EQ(CardInfoToJson(Example()).find("context"), std::string::npos);
}

TEST(CardInfoTest, LaterFieldsAreIgnored) {
  const std::string text = Replace(CardInfoToJson(Example()), "{", R"({"new":{"a":[1,2,[3,[4,[5,[6,[7]]]]]]},)");
  EXPECT_EQ(*CardInfoFromJson(text), Example());
}

TEST(CardInfoTest, HostileTextIsRefused) {
  const std::string good = CardInfoToJson(Example());
  const std::pair<std::string, std::string> cases[] = {
      {"", "not a JSON object"},
      {"null", "not a JSON object"},
      {"[]", "not a JSON object"},
      {"\"text\"", "not a JSON object"},
      {good + "x", "not a JSON object"},
      {good.substr(0, good.size() - 1), "not a JSON object"},
      {std::string(good).append(1, '\0'), "zero byte"},
      {std::string(good).append(1, '\0') + "x", "zero byte"},
      {Replace(good, "llama", "ll\xFF"), "not a JSON object"},
      {std::string(1 << 20, '['), "not a JSON object"},
      {"{\"segments\":" + std::string(1 << 19, '[') + std::string(1 << 19, ']') + "}", "'model_name' is missing"},
      {Replace(good, "\"llama\"", "7"), "'architecture'"},
      {Replace(good, "\"llama\"", "null"), "'architecture'"},
      {Replace(good, "\"sender\"", "\"other\""), "'sender'"},
      {Replace(good, "\"segments\":[", "\"segments\":7,\"x\":["), "'segments'"},
      {Replace(good, "\"segments\":[", "\"segments\":[7,"), "a segment is not an object"},
      {Replace(good, "\"segments\":[", "\"segments\":[{},"), "'role'"},
      {Replace(good, "\"readers\":[{", "\"readers\":7,\"x\":[{"), "'readers'"},
      {Replace(good, "\"readers\":[{", "\"readers\":[7,{"), "a reader is not an object"},
      {Replace(good, "\"agent\":\"r\"", "\"agent\":5"), "'agent'"},
      {Replace(good, "\"distance\":2", "\"distance\":0"), "distance 0"},
      {Replace(good, "\"distance\":2", "\"distance\":-1"), "'distance'"},
      {Replace(good, "[\"attention\"]", "\"attention\""), "'features'"},
      {Replace(good, "[\"attention\"]", "[1]"), "a feature is not a string"},
      {Replace(good, "\"cache_type\":\"f16\"", "\"cache_type\":16"), "'cache_type'"},
      {Replace(good, "\"rounding\":\"queries\"", "\"rounding\":true"), "'rounding'"},
      {Replace(good, "\"rounding\"", "\"other\""), "'rounding'"},
      {Replace(good, "\"tokens\":3", "\"tokens\":-3"), "'tokens'"},
      {Replace(good, "\"tokens\":3", "\"tokens\":3.0"), "'tokens'"},
      {Replace(good, "\"tokens\":3", "\"tokens\":\"3\""), "'tokens'"},
      {Replace(good, "\"tokens\":3", "\"tokens\":4294967296"), "'tokens'"},
      {Replace(good, "\"tokens\":3", "\"tokens\":99999999999999999999999"), "'tokens'"},
      {Replace(good, "\"tokens\":3", "\"tokens\":1e999"), "not a JSON object"},
      {Replace(good, "\"tokens\":3", "\"tokens\":[[[[[[3]]]]]]"), "'tokens'"},
  };
  for (const auto& [text, message] : cases) {
    const Result<CardInfo> info = CardInfoFromJson(text);
    ASSERT_FALSE(info) << text.substr(0, 200);
    EXPECT_EQ(info.status().code(), StatusCode::kCorrupt);
    EXPECT_NE(info.status().message().find(message), std::string::npos)
        << info.status().message() << " for " << text.substr(0, 200);
  }
}

TEST(CardInfoTest, HostileContextsAreRefused) {
  const std::string good = CardInfoToJson(WithContext());
  const std::string zeros(64, '0');
  const auto many = [](size_t cards) {
    CardInfo info = Example();
    info.context.assign(cards, {Digest{}, 1});
    return CardInfoToJson(info);
  };
  ASSERT_TRUE(CardInfoFromJson(many(4096)));
  const std::pair<std::string, std::string> cases[] = {
      {many(4097), "not an array of 1 to 4096 cards"},
      {Replace(good, "\"context\":[", "\"context\":[],\"x\":["), "not an array of 1 to"},
      {Replace(good, "\"context\":[", "\"context\":{},\"x\":["), "not an array of 1 to"},
      {Replace(good, "\"context\":[", "\"context\":[7,"), "not an object"},
      {Replace(good, zeros, zeros.substr(1)), "not a content id"},
      {Replace(good, zeros, zeros.substr(1) + "F"), "not a content id"},
      {Replace(good, "\"" + zeros + "\"", "0"), "'card'"},
      {Replace(good, "\"tokens\":7", "\"tokens\":-7"), "'tokens'"},
      {Replace(good, "\"tokens\":7", "\"t\":7"), "'tokens'"},
  };
  for (const auto& [text, message] : cases) {
    const Result<CardInfo> info = CardInfoFromJson(text);
    ASSERT_FALSE(info) << message;
    EXPECT_EQ(info.status().code(), StatusCode::kCorrupt);
    EXPECT_NE(info.status().message().find(message), std::string::npos) << info.status().message();
  }
}

TEST(CheckContextCardsTest, EndsWithTheParentWhereTheCardStarts) {
  const Digest a = {1}, b = {2};
  const auto check = [&](const std::vector<ContextCard>& context, uint32_t first_token, int32_t position) {
    return CheckContextCards(context, b, first_token, position).ok();
  };
  EXPECT_TRUE(check({}, 5, 9)) << "says nothing";
  EXPECT_TRUE(check({{b, 5}}, 5, 5));
  EXPECT_TRUE(check({{a, 2}, {b, 1}, {b, 2}}, 5, 5));
  EXPECT_FALSE(check({{a, 2}, {b, 3}}, 6, 5));
  EXPECT_FALSE(check({{a, 2}, {b, 3}}, 5, 6));
  EXPECT_FALSE(check({{a, 2}, {b, 3}}, 5, -5));
  EXPECT_FALSE(check({{b, 2}, {a, 3}}, 5, 5)) << "the parent is not last";
  EXPECT_FALSE(check({{a, 0}, {b, 5}}, 5, 5));
  EXPECT_FALSE(check({{a, UINT32_MAX}, {b, 6}}, 5, 5)) << "a sum that wraps";
}

TEST(CheckSegmentsTest, CoverAllTokensOnce) {
  const auto check = [](const std::vector<std::pair<uint32_t, uint32_t>>& runs, uint32_t tokens) {
    std::vector<Segment> segments;
    for (const auto& [first, n] : runs) segments.push_back({"user", "a", "", first, n});
    return CheckSegments(segments, tokens).ok();
  };
  EXPECT_TRUE(check({{0, 5}}, 5));
  EXPECT_TRUE(check({{0, 2}, {2, 3}}, 5));
  EXPECT_FALSE(check({}, 5));
  EXPECT_FALSE(check({{0, 4}}, 5));
  EXPECT_FALSE(check({{0, 6}}, 5));
  EXPECT_FALSE(check({{1, 4}}, 5));
  EXPECT_FALSE(check({{0, 2}, {3, 2}}, 5));           // gap
  EXPECT_FALSE(check({{0, 3}, {2, 3}}, 5));           // overlap
  EXPECT_FALSE(check({{0, 5}, {5, 0}}, 5));           // empty
  EXPECT_FALSE(check({{0, 3}, {3, UINT32_MAX}}, 5));  // 3 + 2^32 - 1 wraps to 2
}

}  // namespace
}  // namespace qkvshare
