#include "eval/rank_correlation.h"

#include <gtest/gtest.h>

#include <vector>

namespace qkvshare {
namespace {

TEST(RankCorrelationTest, OrderAlone) {
  const std::vector<double> a = {1, 2, 3, 4}, grows = {-5, 0, 1e6, 1e9}, falls = {4, 3, 2, 1};
  EXPECT_DOUBLE_EQ(RankCorrelation(a, grows), 1);
  EXPECT_DOUBLE_EQ(RankCorrelation(a, falls), -1);
}

// Ranks 0 1 2 3 4 against 1 0 2 4 3: 1 - 6 * (1 + 1 + 0 + 1 + 1) / (5 * 24).
TEST(RankCorrelationTest, ByHand) {
  const std::vector<double> a = {10, 20, 30, 40, 50}, b = {2, 1, 3, 5, 4};
  EXPECT_NEAR(RankCorrelation(a, b), 0.8, 1e-12);
}

// Ranks 0 1.5 1.5 3 against 0 1 2 3: products 2.25 + 0 + 0 + 2.25 over the root of 4.5 * 5.
TEST(RankCorrelationTest, EqualValues) {
  const std::vector<double> a = {1, 2, 2, 3}, b = {1, 2, 3, 4}, same = {7, 7, 7, 7};
  EXPECT_NEAR(RankCorrelation(a, b), 4.5 / 4.743416490252569, 1e-12);
  EXPECT_EQ(RankCorrelation(a, same), 0);
}

}  // namespace
}  // namespace qkvshare
