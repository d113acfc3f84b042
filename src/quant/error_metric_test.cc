#include "quant/error_metric.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace qkvshare {
namespace {

using Row = std::vector<float>;

constexpr size_t kMany = 1000000000;  // so that nothing is left to chance

Row Gaussian(size_t dim, std::mt19937* random) {
  std::normal_distribution<float> normal(0, 1);
  Row row(dim);
  for (float& x : row) x = normal(*random);
  return row;
}

// As the header defines it.
double Cost(const ErrorMetric& metric, const Row& e) {
  double cost = 0;
  for (size_t i = 0; i < metric.dim; ++i) {
    double seen = e[i];
    for (size_t j = 0; j < i; ++j) seen += static_cast<double>(metric.feedback[i * metric.dim + j]) * e[j];
    cost += metric.weight[i] * seen * seen;
  }
  return cost;
}

double Square(const Row& x) { return std::inner_product(x.begin(), x.end(), x.begin(), 0.0); }

TEST(ErrorMetricTest, CostsWhatQueriesSeeOfAnError) {
  constexpr size_t kDim = 24;
  std::mt19937 random(1);
  std::vector<Row> queries;
  Row moments(kDim * kDim);
  for (int i = 0; i < 10; ++i) {  // fewer than directions
    queries.push_back(Gaussian(kDim, &random));
    for (size_t c = 0; c < kDim; ++c) queries.back()[c] *= static_cast<float>(c + 1);
    AddMoments(queries.back(), moments.data());
  }
  double mean = 0;
  for (const Row& q : queries) mean += Square(q) / kDim;
  const Result<ErrorMetric> metric = MakeErrorMetric(moments, kDim, kMany);
  ASSERT_TRUE(metric) << metric.status().message();
  for (int i = 0; i < 20; ++i) {
    const Row e = Gaussian(kDim, &random);
    double seen = 0;
    for (const Row& q : queries) seen += std::pow(std::inner_product(q.begin(), q.end(), e.begin(), 0.0), 2);
    const double expected = (seen / mean + kMetricRidge * Square(e)) / (1 + kMetricRidge);
    EXPECT_NEAR(Cost(*metric, e), expected, 1e-4 * expected);
  }
}

// Queries of one size in all directions: the fewer, the less their sum means.
TEST(ErrorMetricTest, FewQueriesTellLittle) {
  constexpr size_t kDim = 32;
  std::mt19937 random(1);
  for (const size_t queries : {2, 20, 200, 20000}) {
    Row moments(kDim * kDim);
    for (size_t i = 0; i < queries; ++i) AddMoments(Gaussian(kDim, &random), moments.data());
    const ErrorMetric metric = *MakeErrorMetric(moments, kDim, queries);
    for (int i = 0; i < 20; ++i) {
      const Row e = Gaussian(kDim, &random);
      EXPECT_NEAR(Cost(metric, e), Square(e), 0.35 * Square(e)) << queries;
    }
  }
  // Of one direction, and many of them: it counts alone, but for the ridge.
  Row moments(kDim * kDim);
  for (int i = 0; i < 1000; ++i) {
    Row q(kDim);
    q[3] = 1;
    AddMoments(q, moments.data());
  }
  const ErrorMetric metric = *MakeErrorMetric(moments, kDim, 1000);
  Row e(kDim);
  e[4] = 1;
  EXPECT_NEAR(Cost(metric, e), kMetricRidge, 1e-3);
  e[3] = 1;
  EXPECT_NEAR(Cost(metric, e), kDim, 0.5);
}

TEST(ErrorMetricTest, WithoutQueriesEveryDirectionCountsAlike) {
  std::mt19937 random(1);
  const Result<ErrorMetric> metric = MakeErrorMetric(Row(64), 8, 0);
  ASSERT_TRUE(metric) << metric.status().message();
  const Row e = Gaussian(8, &random);
  EXPECT_NEAR(Cost(*metric, e), Square(e), 1e-5);
}

TEST(ErrorMetricTest, OneQuerySeesOneDirection) {
  Row moments(64);
  const Row q = {3, 0, -4, 0, 0, 0, 0, 1e-3f};
  AddMoments(q, moments.data());
  const Result<ErrorMetric> metric = MakeErrorMetric(moments, 8, kMany);
  ASSERT_TRUE(metric) << metric.status().message();
  EXPECT_NEAR(Cost(*metric, {4, 0, 3, 0, 0, 0, 0, 0}), 25 * kMetricRidge, 0.01);
  EXPECT_NEAR(Cost(*metric, {3, 0, -4, 0, 0, 0, 0, 0}), 25 * 8, 2.5);
  for (const float x : metric->feedback) EXPECT_TRUE(std::isfinite(x));
  for (const float x : metric->weight) EXPECT_GT(x, 0);
}

TEST(ErrorMetricTest, QueriesThatAreNotFiniteAreRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f}) {
    Row moments(64);
    AddMoments(Row{1, 2, bad, 4, 5, 6, 7, 8}, moments.data());
    const Result<ErrorMetric> metric = MakeErrorMetric(moments, 8, 1);
    ASSERT_FALSE(metric);
    EXPECT_EQ(metric.status().code(), StatusCode::kNonFinite);
  }
}

}  // namespace
}  // namespace qkvshare
