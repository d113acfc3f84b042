#include "eval/proportions.h"

#include <gtest/gtest.h>

#include <vector>

namespace qkvshare {
namespace {

// The examples of Newcombe, "Two-sided confidence intervals for the single proportion" (1998), method 3.
TEST(WilsonIntervalTest, GivesPublishedValues) {
  const auto expect = [](size_t right, size_t all, double low, double high) {
    const Proportion share = WilsonInterval(right, all);
    EXPECT_DOUBLE_EQ(share.value, static_cast<double>(right) / static_cast<double>(all));
    EXPECT_NEAR(share.low, low, 5e-5) << right << " of " << all;
    EXPECT_NEAR(share.high, high, 5e-5) << right << " of " << all;
  };
  expect(81, 263, 0.2553, 0.3662);
  expect(15, 148, 0.0624, 0.1605);
  expect(0, 20, 0, 0.1611);
  expect(1, 29, 0.0061, 0.1718);
}

TEST(WilsonIntervalTest, KnowsNothingOfNothingAndStaysWithinBounds) {
  EXPECT_EQ(WilsonInterval(0, 0).low, 0);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1);
  for (const size_t all : {1u, 7u, 1319u}) {
    EXPECT_EQ(WilsonInterval(0, all).low, 0);
    EXPECT_EQ(WilsonInterval(all, all).high, 1);
    EXPECT_GT(WilsonInterval(0, all).high, 0);
    EXPECT_NEAR(WilsonInterval(0, all).high, 1 - WilsonInterval(all, all).low, 1e-12);
  }
}

// Binomial sums by hand: for 1 and 9 of 10, 2 * (1 + 10) / 1024.
TEST(McNemarExactTest, IsTheTwoSidedBinomialTest) {
  EXPECT_DOUBLE_EQ(McNemarExact(0, 0), 1);
  EXPECT_NEAR(McNemarExact(0, 5), 2.0 / 32, 1e-12);
  EXPECT_NEAR(McNemarExact(1, 9), 22.0 / 1024, 1e-12);
  EXPECT_NEAR(McNemarExact(9, 1), 22.0 / 1024, 1e-12);
  EXPECT_NEAR(McNemarExact(2, 8), 112.0 / 1024, 1e-12);
  EXPECT_DOUBLE_EQ(McNemarExact(5, 5), 1);
  EXPECT_DOUBLE_EQ(McNemarExact(4, 5), 1);
  // Sums in exact integers.
  EXPECT_NEAR(McNemarExact(10, 25), 0.01667384780012071, 1e-12);
  EXPECT_NEAR(McNemarExact(500, 520), 0.5519226142149165, 1e-9);
  EXPECT_NEAR(McNemarExact(600, 400), 2.7284641560660184e-10, 1e-18);
}

TEST(HolmAdjustedTest, StepsDownAndNeverFalls) {
  // 0.01 x 4, 0.02 x 3, 0.03 x 2 (the one before is as much), 0.04.
  const std::vector<double> adjusted = HolmAdjusted(std::vector<double>{0.04, 0.01, 0.03, 0.02});
  EXPECT_NEAR(adjusted[1], 0.04, 1e-12);
  EXPECT_NEAR(adjusted[3], 0.06, 1e-12);
  EXPECT_NEAR(adjusted[2], 0.06, 1e-12);
  EXPECT_NEAR(adjusted[0], 0.06, 1e-12);
  EXPECT_EQ(HolmAdjusted(std::vector<double>{0.7, 0.6}), (std::vector<double>{1, 1}));
  EXPECT_EQ(HolmAdjusted(std::vector<double>{0.3}), std::vector<double>{0.3});
  EXPECT_TRUE(HolmAdjusted({}).empty());
}

}  // namespace
}  // namespace qkvshare
