#include "eval/stage.h"

#include <gtest/gtest.h>

namespace qkvshare {
namespace {

TEST(Stage, SpreadIsOfTheRunsInAnyOrder) {
  const Spread odd = SpreadOf({30, 10, 20});
  EXPECT_EQ(odd.median_us, 20);
  EXPECT_EQ(odd.least_us, 10);
  EXPECT_EQ(odd.most_us, 30);
  EXPECT_EQ(SpreadOf({10, 40}).median_us, 25);
  EXPECT_EQ(SpreadOf({7}).most_us, 7);
}

TEST(Stage, EachStageHasItsOwnSpread) {
  const std::vector<Stages> runs = {
      {{"open", 5}, {"read", 100}}, {{"open", 9}, {"read", 90}}, {{"open", 1}, {"read", 300}}};
  EXPECT_EQ(TotalUs(runs[0]), 105);
  EXPECT_EQ(TotalUs({}), 0);
  const std::vector<StageSpread> spreads = SpreadsOf(runs);
  ASSERT_EQ(spreads.size(), 2u);
  EXPECT_EQ(spreads[0].name, "open");
  EXPECT_EQ(spreads[0].time.median_us, 5);
  EXPECT_EQ(spreads[1].name, "read");
  EXPECT_EQ(spreads[1].time.median_us, 100);
  EXPECT_EQ(spreads[1].time.most_us, 300);
}

}  // namespace
}  // namespace qkvshare
