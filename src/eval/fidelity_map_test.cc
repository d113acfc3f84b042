#include "eval/fidelity_map.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

TurnTokens SomeTokens(const std::vector<Level>& levels) {
  TurnTokens tokens;
  tokens.levels = levels;
  for (size_t i = 0; i < levels.size(); ++i) tokens.texts.push_back("t" + std::to_string(i) + "<");
  tokens.segments = {{"rules", 2}, {"story", static_cast<uint32_t>(levels.size() - 2)}};
  return tokens;
}

std::string MapsOf(const std::vector<Json>& lines) {
  ReportFile file = {"f.jsonl", "", {}};
  file.results.lines = lines;
  const Result<std::string> maps = TokenMaps({"title", {&file}});
  EXPECT_TRUE(maps.has_value()) << maps.status().message();
  return maps.has_value() ? *maps : "";
}

TEST(FidelityMapTest, RunsOfLevelsComeBack) {
  const std::vector<Level> levels = {kExactLevel, kExactLevel, {4, 4}, {4, 2}, {4, 2}, {4, 4}};
  EXPECT_EQ(LevelRuns(levels), "exact*2 K4V4*1 K4V2*2 K4V4*1");
  EXPECT_EQ(*ParseLevelRuns(LevelRuns(levels)), levels);
  for (const char* bad : {"", "K4V4", "K4V4*", "K4V4*0", "K4V4*3x", "K9V9*3", "K4V4*2049", "K4V4*2000 K4V2*49", "*3"})
    EXPECT_EQ(ParseLevelRuns(bad).status().code(), StatusCode::kCorrupt) << bad;
}

TEST(FidelityMapTest, AMapIsDrawnOfArmsThatChose) {
  const Json chose = {{"arm", "local@3"},          {"prompt", "p0"},
                      {"continuation", "c0"},      {"code_bits", 3.0},
                      {"features", {"attention"}}, {"map", TokenMapJson(SomeTokens({kExactLevel, {4, 4}, {4, 2}}))}};
  Json uniform = chose;
  uniform["arm"] = "uniform@4";
  uniform["map"] = TokenMapJson(SomeTokens({kExactLevel, {4, 4}, {4, 4}}));
  const std::string html = MapsOf({chose, uniform, {{"arm", "floor"}}});
  for (const char* word : {"local@3", "features: attention", "t0&lt;", "story", "K4V2", "The tokens of one context"})
    EXPECT_NE(html.find(word), std::string::npos) << word << "\n" << html;
  EXPECT_EQ(html.find("uniform@4"), std::string::npos);
  EXPECT_EQ(MapsOf({uniform}), "");
}

TEST(FidelityMapTest, ADamagedMapIsNamed) {
  Json map = TokenMapJson(SomeTokens({kExactLevel, {4, 4}, {4, 2}}));
  map["texts"].erase(0);
  EXPECT_EQ(ParseTokenMap(map).status().code(), StatusCode::kCorrupt);
  ReportFile file = {"f.jsonl", "", {}};
  file.results.lines = {Json{{"arm", "a"}, {"map", 1}}};
  const Status status = TokenMaps({"title", {&file}}).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("f.jsonl: result 1"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace qkvshare
