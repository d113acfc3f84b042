#include "quant/bit_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

namespace qkvshare {
namespace {

TEST(BitPlanTest, LevelsKeepTheRules) {
  std::set<std::string> names;
  for (int keys = 0; keys < 256; ++keys) {
    for (int values = 0; values < 256; ++values) {
      const Level level = {static_cast<uint8_t>(keys), static_cast<uint8_t>(values)};
      if (IsValidLevel(level)) names.insert(LevelName(level));
    }
  }
  EXPECT_EQ(names.size(), 16u);  // all pairs of 2, 4, 8 and 16
  EXPECT_TRUE(names.contains("K2V16"));
  EXPECT_EQ(LevelName(kExactLevel), "exact");
  for (const Level level : kLevels) EXPECT_GE(level.key_bits, level.value_bits);
}

TEST(BitPlanTest, ValidatePlanNamesWhatIsWrong) {
  const BitPlan good = {"test", {{4, 4}, {16, 16}}, {1, 0, 0}, {{3, -3}, {0, 1}}};
  EXPECT_TRUE(ValidatePlan(good, 3, 2).ok());
  const auto refused = [](const BitPlan& plan, const std::string& text) {
    const Status status = ValidatePlan(plan, 3, 2);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  EXPECT_NE(ValidatePlan(good, 4, 2).message().find("made for 3 tokens"), std::string::npos);
  refused({"test", {}, {0, 0, 0}, {}}, "1 to 16 levels");
  refused({"test", std::vector<Level>(17, Level{4, 4}), {0, 0, 0}, {}}, "1 to 16 levels");
  refused({"test", {{4, 3}}, {0, 0, 0}, {}}, "K4V3 is not a level");
  refused({"test", {{0, 8}}, {0, 0, 0}, {}}, "K0V8 is not a level");
  refused({"test", {{4, 4}, {8, 8}, {4, 4}}, {0, 0, 0}, {}}, "K4V4 is listed twice");
  refused({"test", {{4, 4}}, {0, 1, 0}, {}}, "level index 1");
  refused({"test", {{4, 4}}, {0, 0, 0}, {{0, 0}}}, "adjusts 1 layers, but there are 2");
  refused({"test", {{4, 4}}, {0, 0, 0}, {{0, 0}, {0, -4}}}, "by more than 3 steps");
}

TEST(BitPlanTest, LayersAreAdjustedInStepsAndExactTokensNever) {
  EXPECT_EQ(SideBits({4, 2}, Side::kKeys, {}), 4);
  EXPECT_EQ(SideBits({4, 2}, Side::kValues, {}), 2);
  EXPECT_EQ(SideBits({4, 2}, Side::kKeys, {1, 0}), 8);
  EXPECT_EQ(SideBits({4, 2}, Side::kKeys, {2, 0}), 16);
  EXPECT_EQ(SideBits({4, 2}, Side::kKeys, {3, 0}), 16);  // clamped
  EXPECT_EQ(SideBits({4, 2}, Side::kKeys, {-3, 0}), 2);
  EXPECT_EQ(SideBits({4, 2}, Side::kValues, {3, 1}), 4);
  EXPECT_EQ(SideBits({16, 4}, Side::kKeys, {-1, 0}), 8);
  EXPECT_EQ(SideBits(kExactLevel, Side::kKeys, {-1, -1}), 16);
  const BitPlan plan = {"test", {{2, 2}, {8, 4}, {16, 16}}, {0}, {{0, 0}, {1, -1}}};
  EXPECT_EQ(plan.SideBitsOf(0, Side::kKeys), (std::vector<int>{2, 8, 16}));
  EXPECT_EQ(plan.SideBitsOf(1, Side::kKeys), (std::vector<int>{4, 16, 16}));
  EXPECT_EQ(plan.SideBitsOf(1, Side::kValues), (std::vector<int>{2, 2, 16}));
}

TEST(BitPlanTest, OrderGroupsByLevelAndAscends) {
  const BitPlan plan = {"test", {{4, 4}, {8, 4}, {8, 8}, {16, 16}}, {3, 0, 2, 0, 2, 3, 0}, {}};  // no token at level 1
  const TokenOrder order = OrderTokens(plan);
  EXPECT_EQ(order.level_size, (std::vector<uint32_t>{3, 0, 2, 2}));
  EXPECT_EQ(order.token_at, (std::vector<uint32_t>{1, 3, 6, 2, 4, 0, 5}));
}

TEST(BitPlanTest, OrderIsAPermutation) {
  std::mt19937 random(2);
  for (const size_t tokens : {1u, 17u, 500u}) {
    BitPlan plan = {"test", {kLevels.begin(), kLevels.end()}, {}, {}};
    for (size_t i = 0; i < tokens; ++i) plan.level_of_token.push_back(static_cast<uint8_t>(random() % kLevels.size()));
    const TokenOrder order = OrderTokens(plan);
    EXPECT_EQ(std::set<uint32_t>(order.token_at.begin(), order.token_at.end()).size(), tokens);
    EXPECT_EQ(std::accumulate(order.level_size.begin(), order.level_size.end(), 0u), tokens);
    for (size_t i = 1; i < tokens; ++i) {
      const uint8_t before = plan.level_of_token[order.token_at[i - 1]];
      const uint8_t here = plan.level_of_token[order.token_at[i]];
      EXPECT_TRUE(before < here || (before == here && order.token_at[i - 1] < order.token_at[i])) << i;
    }
  }
}

TEST(BitPlanTest, UniformPlanKeepsTheFirstTokensExact) {
  const BitPlan plan = UniformPlan(6, {8, 4}, 2);
  EXPECT_TRUE(ValidatePlan(plan, 6, 1).ok());
  EXPECT_EQ(plan.policy, "uniform");
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(plan.level(i), i < 2 ? kExactLevel : (Level{8, 4})) << i;
  EXPECT_TRUE(ValidatePlan(UniformPlan(2, {4, 4}, 4), 2, 1).ok());
  EXPECT_EQ(UniformPlan(5, {4, 4}, 0).levels.size(), 1u);
  EXPECT_TRUE(ValidatePlan(UniformPlan(5, kExactLevel, 4), 5, 1).ok());
}

}  // namespace
}  // namespace qkvshare
