#include "eval/bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "eval/seeded_random.h"

namespace qkvshare {
namespace {

std::vector<ClusterSum> Values(std::initializer_list<double> values) {
  std::vector<ClusterSum> clusters;
  for (const double value : values) clusters.push_back({value, 1});
  return clusters;
}

TEST(SeededRandomTest, IsSplitMix64) {
  // Source: the generator's reference implementation, seed 1234567.
  SeededRandom random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317U);
  EXPECT_EQ(random.Next(), 3203168211198807973U);
  EXPECT_EQ(random.Next(), 9817491932198370423U);
}

TEST(SeededRandomTest, DrawsWithinItsBounds) {
  SeededRandom random(1);
  std::map<int, int> counts;
  for (int i = 0; i < 7000; ++i) ++counts[random.Within(-3, 3)];
  EXPECT_EQ(counts.size(), 7u);
  EXPECT_EQ(counts.begin()->first, -3);
  for (const auto& [drawn, count] : counts) EXPECT_NEAR(count, 1000, 150) << drawn;  // five standard deviations
  std::vector<int> items = {1, 2, 3, 4, 5};
  random.Shuffle(&items);
  std::vector<int> sorted = items;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_NE(SeededRandom(1, 0).Next(), SeededRandom(1, 1).Next());
}

TEST(BootstrapTest, MeansAreOverAllValuesOfAllClusters) {
  const std::vector<ClusterSum> clusters = {{10, 1}, {2, 4}, {0, 0}};
  EXPECT_DOUBLE_EQ(Bootstrap(1).Mean(clusters).value, 12.0 / 5);
}

TEST(BootstrapTest, TheIntervalOfAMeanIsThatOfItsStandardError) {
  // 200 values of variance 1/12: the percentile interval of the mean is near that of the normal distribution.
  SeededRandom random(5);
  std::vector<ClusterSum> clusters;
  double sum = 0, squares = 0;
  for (int i = 0; i < 200; ++i) {
    const double value = static_cast<double>(random.Below(1 << 20)) / (1 << 20);
    clusters.push_back({value, 1});
    sum += value;
    squares += value * value;
  }
  const double mean = sum / 200, error = std::sqrt((squares / 200 - mean * mean) / 200);
  const Interval interval = Bootstrap(1).Mean(clusters);
  EXPECT_DOUBLE_EQ(interval.value, mean);
  EXPECT_NEAR(interval.low, mean - 1.96 * error, 0.1 * error);
  EXPECT_NEAR(interval.high, mean + 1.96 * error, 0.1 * error);
}

TEST(BootstrapTest, ComparisonsArePaired) {
  // Values that differ a lot between clusters, and by a fifth between the arms of a cluster.
  const std::vector<ClusterSum> a = Values({0.8, 8, 80, 800}), b = Values({1, 10, 100, 1000});
  const Interval ratio = Bootstrap(1).Ratio(a, b);
  EXPECT_NEAR(ratio.value, 0.8, 1e-12);
  EXPECT_NEAR(ratio.low, 0.8, 1e-12);
  EXPECT_NEAR(ratio.high, 0.8, 1e-12);
  const Interval difference = Bootstrap(1).Difference(a, b);
  EXPECT_DOUBLE_EQ(difference.value, (888.8 - 1111) / 4);
  EXPECT_LT(difference.high, 0);
}

TEST(BootstrapTest, TheSameSeedGivesTheSameInterval) {
  const std::vector<ClusterSum> a = Values({1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(Bootstrap(3).Mean(a).low, Bootstrap(3).Mean(a).low);
  // Another seed: the same but for the resampling's own error.
  EXPECT_NEAR(Bootstrap(3).Mean(a).low, Bootstrap(4).Mean(a).low, 0.15);
}

TEST(BootstrapTest, WhatIsNotKnownIsNoNumber) {
  EXPECT_TRUE(std::isnan(Bootstrap(1).Mean({}).value));
  const Interval one = Bootstrap(1).Mean(Values({3}));
  EXPECT_EQ(one.value, 3);
  EXPECT_TRUE(std::isnan(one.low));
  EXPECT_TRUE(std::isnan(one.high));
  EXPECT_TRUE(std::isnan(Bootstrap(1).Ratio(Values({1, 2}), Values({0, 0})).low));
  EXPECT_TRUE(std::isnan(Bootstrap(1).Ratio(Values({1, 2}), Values({1})).value));
  const std::vector<ClusterSum> none = {{0, 0}, {0, 0}};
  EXPECT_TRUE(std::isnan(Bootstrap(1).Mean(none).value));
}

}  // namespace
}  // namespace qkvshare
