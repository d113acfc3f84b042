#include "policy/head_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace qkvshare {
namespace {

TEST(HeadMatrix, ProductsAreThoseOfTheRows) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  for (const size_t tokens : {1u, 15u, 16u, 17u, 50u}) {
    for (const size_t dim : {8u, 24u, 64u}) {
      const size_t stride = dim + 8;
      std::vector<Half> rows(tokens * stride);
      for (Half& x : rows) x = FloatToHalf(normal(random));
      const HeadMatrix matrix({rows.data(), stride, tokens, dim});
      const size_t padded = matrix.padded_tokens();
      std::vector<float> x(kQueryBlock * dim), weight(kQueryBlock * padded), scores(kQueryBlock * padded);
      std::vector<float> sums(kQueryBlock * dim);
      for (float& v : x) v = normal(random);
      for (float& v : weight) v = normal(random);
      const TokenRange range = {tokens / 3, tokens};
      matrix.Dot(x.data(), range, scores.data());
      matrix.WeightedSum(weight.data(), range, sums.data());
      const std::vector<float> norms = matrix.SquaredNorms();
      const auto value = [&](size_t t, size_t c) { return double{HalfToFloat(rows[t * stride + c])}; };
      // Sums of at most 64 terms of about 1, in single precision: absolute.
      constexpr double kTolerance = 2e-5;
      for (size_t r = 0; r < kQueryBlock; ++r) {
        for (size_t t = range.first; t < tokens; ++t) {
          double expected = 0;
          for (size_t c = 0; c < dim; ++c) expected += double{x[r * dim + c]} * value(t, c);
          ASSERT_NEAR(scores[r * padded + t], expected, kTolerance);
        }
        for (size_t c = 0; c < dim; ++c) {
          double expected = 0;
          for (size_t t = range.first; t < tokens; ++t) expected += double{weight[r * padded + t]} * value(t, c);
          ASSERT_NEAR(sums[r * dim + c], expected, kTolerance);
        }
      }
      for (size_t t = 0; t < tokens; ++t) {
        double expected = 0;
        for (size_t c = 0; c < dim; ++c) expected += value(t, c) * value(t, c);
        ASSERT_NEAR(norms[t], expected, 1e-4);
      }
    }
  }
}

TEST(Softmax, IsWithinSinglePrecisionOfTheExactOne) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 10);
  for (const size_t count : {1u, 15u, 16u, 1000u}) {
    std::vector<float> scores(count);
    for (float& x : scores) x = normal(random);
    const std::vector<float> before = scores;
    const float log_sum = Softmax(scores);
    double sum = 0;
    for (const float x : before) sum += std::exp(double{x});
    EXPECT_NEAR(log_sum, std::log(sum), 1e-5);
    for (size_t i = 0; i < count; ++i) {
      const double expected = std::exp(double{before[i]}) / sum;
      // Relative: the difference to the largest score, up to 60, is rounded to 4e-6.
      ASSERT_NEAR(scores[i], expected, 1e-5 * expected + 1e-37);
    }
  }
}

TEST(Softmax, StaysFiniteWithHugeScoresAndNan) {
  std::vector<float> scores = {1e30f, -1e30f, 3.0f};
  Softmax(scores);
  EXPECT_EQ(scores[0], 1.0f);
  EXPECT_NEAR(scores[1], 0.0f, 1e-30f);
  scores = {1.0f, std::nanf(""), 2.0f};
  Softmax(scores);
  for (const float x : scores) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace qkvshare
