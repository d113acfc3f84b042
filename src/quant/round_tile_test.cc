// Rounding in a metric: what it leaves, and that all sets of kernels give the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "quant/error_metric.h"
#include "quant/kernels.h"
#include "quant/tile.h"

namespace qkvshare {
namespace {

struct Rounded {
  std::vector<uint8_t> codes;  // [rows, dim]
  std::vector<RowScale> scales;
  std::vector<float> costs;

  // What a row's codes stand for.
  std::vector<float> Row(size_t row, int bits) const {
    const size_t dim = codes.size() / scales.size();
    std::vector<float> levels;
    const float zero_code = ZeroCode(ScaleGrid(scales[row]), bits);
    for (size_t c = 0; c < dim; ++c)
      levels.push_back((static_cast<float>(codes[row * dim + c]) - zero_code) * ScaleStep(scales[row]));
    return levels;
  }
};

struct alignas(64) Columns : std::array<float, kTileTokens * kMaxHeadDim> {};

// rows: [n, dim].
Rounded Round(const Kernels& kernels, const ErrorMetric& metric, const std::vector<float>& rows, int bits) {
  const size_t n = rows.size() / metric.dim;
  Columns x{};
  for (size_t r = 0; r < n; ++r) {
    for (size_t c = 0; c < metric.dim; ++c) x[c * kTileTokens + r] = rows[r * metric.dim + c];
  }
  Rounded rounded{std::vector<uint8_t>(rows.size()), std::vector<RowScale>(n), std::vector<float>(n)};
  kernels.round_tile(metric, x.data(), n, bits, rounded.codes.data(), rounded.scales.data(), rounded.costs.data());
  return rounded;
}

double Cost(const ErrorMetric& metric, const float* x, const std::vector<float>& rounded) {
  double cost = 0;
  for (size_t i = 0; i < metric.dim; ++i) {
    double seen = rounded[i] - x[i];
    for (size_t j = 0; j < i; ++j)
      seen += static_cast<double>(metric.feedback[i * metric.dim + j]) * (rounded[j] - x[j]);
    cost += metric.weight[i] * seen * seen;
  }
  return cost;
}

class RoundTileTest : public ::testing::Test {
 protected:
  std::vector<float> Gaussian(size_t values) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> row(values);
    for (float& x : row) x = normal(random_);
    return row;
  }
  // Of queries in a few directions, as those of a head are.
  ErrorMetric Narrow(size_t dim) {
    std::vector<float> moments(dim * dim);
    const std::vector<float> directions = Gaussian(dim / 4 * dim);
    for (int i = 0; i < 200; ++i) {
      const std::vector<float> weights = Gaussian(dim / 4);
      std::vector<float> q(dim);
      for (size_t k = 0; k < weights.size(); ++k) {
        for (size_t c = 0; c < dim; ++c) q[c] += weights[k] * directions[k * dim + c];
      }
      AddMoments(q, moments.data());
    }
    return *MakeErrorMetric(moments, dim, 200);
  }
  std::mt19937 random_{1};
};

TEST_F(RoundTileTest, CostsFarLessThanRoundingEachChannelByItself) {
  for (const size_t dim : {64, 128}) {
    const ErrorMetric metric = Narrow(dim);
    const std::vector<float> rows = Gaussian(kTileTokens * dim);
    for (const int bits : {2, 4}) {
      SCOPED_TRACE(testing::Message() << dim << " channels, " << bits << " bits");
      const Rounded rounded = Round(ScalarKernels(), metric, rows, bits);
      double plain = 0;
      double in_metric = 0;
      for (size_t r = 0; r < kTileTokens; ++r) {
        Rounded alone{std::vector<uint8_t>(dim), std::vector<RowScale>(1), {}};
        ScalarKernels().quantize_row(&rows[r * dim], dim, bits, alone.codes.data(), alone.scales.data());
        plain += Cost(metric, &rows[r * dim], alone.Row(0, bits));
        const double cost = Cost(metric, &rows[r * dim], rounded.Row(r, bits));
        EXPECT_NEAR(rounded.costs[r], cost, 1e-3 * cost + 1e-4);
        in_metric += cost;
      }
      EXPECT_LT(in_metric, plain * (bits == 2 ? 0.5 : 0.35));
    }
  }
}

TEST_F(RoundTileTest, WithoutDirectionsItIsPlainRounding) {
  constexpr size_t kDim = 64;
  const ErrorMetric metric = *MakeErrorMetric(std::vector<float>(kDim * kDim), kDim, 0);
  const std::vector<float> rows = Gaussian(kTileTokens * kDim);
  for (const int bits : {2, 4}) {
    const Rounded rounded = Round(ScalarKernels(), metric, rows, bits);
    for (size_t r = 0; r < kTileTokens; ++r) {
      std::vector<uint8_t> codes(kDim);
      RowScale scale = 0;
      const float error = ScalarKernels().quantize_row(&rows[r * kDim], kDim, bits, codes.data(), &scale);
      EXPECT_NEAR(rounded.costs[r], error, 0.05 * error);
    }
  }
}

TEST_F(RoundTileTest, ARowDoesNotDependOnItsNeighbours) {
  constexpr size_t kDim = 40;
  const ErrorMetric metric = Narrow(kDim);
  const std::vector<float> rows = Gaussian(kTileTokens * kDim);
  for (const Kernels* kernels : AvailableKernels()) {
    const Rounded all = Round(*kernels, metric, rows, 4);
    for (size_t r = 0; r < kTileTokens; ++r) {
      const auto first = rows.begin() + static_cast<std::ptrdiff_t>(r * kDim);
      const Rounded alone = Round(*kernels, metric, {first, first + kDim}, 4);
      EXPECT_TRUE(std::equal(alone.codes.begin(), alone.codes.end(), &all.codes[r * kDim]));
      EXPECT_EQ(alone.scales[0], all.scales[r]);
      EXPECT_EQ(alone.costs[0], all.costs[r]);
    }
  }
}

TEST_F(RoundTileTest, AllSetsGiveTheSame) {
  for (const size_t dim : {8, 24, 64, 80, 128, 256, 1024}) {
    const ErrorMetric metric = Narrow(dim);
    std::vector<float> rows = Gaussian(kTileTokens * dim);
    // Rows that are hard on comparisons, and of all sizes.
    const std::array<float, kTileTokens> sizes = {1,     0,     1e-30f, 1e-20f, 1e-10f, 1e6f, 1e10f, 1,
                                                  1e-3f, 1e-6f, 1,      1,      1,      1,    1,     1};
    for (size_t r = 0; r < kTileTokens; ++r) {
      for (size_t c = 0; c < dim; ++c) rows[r * dim + c] *= sizes[r];
      if (r == 14) std::fill_n(&rows[r * dim], dim, 1.0f);
      if (r == 15) std::fill_n(&rows[r * dim + 1], dim - 1, 0.0f);
    }
    for (const int bits : {2, 4}) {
      SCOPED_TRACE(testing::Message() << dim << " channels, " << bits << " bits");
      const Rounded expected = Round(ScalarKernels(), metric, rows, bits);
      for (size_t r = 0; r < kTileTokens; ++r) {
        EXPECT_TRUE(IsValidScale(expected.scales[r]));
        EXPECT_TRUE(std::isfinite(expected.costs[r])) << r;
      }
      EXPECT_EQ(expected.scales[1], 0);
      for (const Kernels* kernels : AvailableKernels()) {
        SCOPED_TRACE(kernels->name);
        const Rounded rounded = Round(*kernels, metric, rows, bits);
        EXPECT_EQ(rounded.codes, expected.codes);
        EXPECT_EQ(rounded.scales, expected.scales);
        EXPECT_EQ(rounded.costs, expected.costs);
      }
    }
  }
}

}  // namespace
}  // namespace qkvshare
