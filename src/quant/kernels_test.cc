#include "quant/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "base/hash.h"

namespace qkvshare {
namespace {

constexpr size_t kDims[] = {8, 64, 72, 80, 96, 128, 256, kMaxHeadDim};

using Row = std::vector<float>;

struct Quantized {
  std::vector<uint8_t> codes;
  Half scale = 0;
  float error = 0;
};

const Kernels& Selected() { return **SelectKernels(); }

Quantized Quantize(const Row& x, int bits, const Kernels& kernels = Selected()) {
  Quantized result;
  result.codes.resize(x.size());
  result.error = kernels.quantize_row(x.data(), x.size(), bits, result.codes.data(), &result.scale);
  return result;
}

Row Dequantize(const Quantized& q, int bits) {
  Row x(q.codes.size());
  Selected().dequantize_row(q.codes.data(), x.size(), bits, q.scale, x.data());
  return x;
}

double Norm2(const Row& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return sum;
}

double Distance2(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return sum;
}

Row Gaussian(std::mt19937* random, size_t dim, float sigma = 1.0f) {
  std::normal_distribution<float> normal(0, sigma);
  Row x(dim);
  for (float& v : x) v = normal(*random);
  return x;
}

// Half the spacing of halves at `scale`: how far rounding may move it.
double HalfRounding(float scale) { return std::max(std::fabs(static_cast<double>(scale)) * 0x1p-11, 0x1p-25); }

TEST(RotateTest, IsTheOrthonormalHadamardMatrix) {
  for (const size_t block : {4u, 8u, 32u, 64u, 128u}) {
    for (size_t column = 0; column < block; ++column) {
      Row x(block, 0.0f);
      x[column] = 1.0f;
      Selected().rotate(x.data(), block, block);
      for (size_t row = 0; row < block; ++row) {
        // Sylvester's matrix: the sign is the parity of the common bits.
        const double sign = std::popcount(row & column) % 2 == 0 ? 1.0 : -1.0;
        // Unit 1; one rounding of 1/sqrt(block).
        ASSERT_NEAR(x[row], sign / std::sqrt(static_cast<double>(block)), 0x1p-24)
            << block << ": " << row << ", " << column;
      }
    }
  }
}

TEST(RotateTest, KeepsLengthAndIsItsOwnInverse) {
  std::mt19937 random(4);
  for (const size_t dim : kDims) {
    const Row x = Gaussian(&random, dim);
    Row y = x;
    Selected().rotate(y.data(), dim, RotationBlock(dim));
    EXPECT_GT(Distance2(x, y), 0.1 * Norm2(x));
    // Relative; each of at most 10 steps and the factor round each value once, by at most 2^-24.
    EXPECT_NEAR(Norm2(y) / Norm2(x), 1.0, 11 * 2 * 0x1p-24);
    Selected().rotate(y.data(), dim, RotationBlock(dim));
    EXPECT_LT(std::sqrt(Distance2(x, y) / Norm2(x)), 22 * 0x1p-24);
  }
}

TEST(RotateTest, BlocksAreIndependent) {
  std::mt19937 random(5);
  const Row x = Gaussian(&random, 72);
  Row whole = x;
  Selected().rotate(whole.data(), 72, 8);
  for (size_t i = 0; i < 72; i += 8) {
    Row part(x.begin() + static_cast<std::ptrdiff_t>(i), x.begin() + static_cast<std::ptrdiff_t>(i + 8));
    Selected().rotate(part.data(), 8, 8);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(i)));
  }
}

TEST(RotateTest, BlockIsTheLargestPowerOfTwoThatDivides) {
  const std::pair<size_t, size_t> blocks[] = {{8, 8},   {64, 64},   {72, 8},    {80, 16},
                                              {96, 32}, {128, 128}, {256, 256}, {1024, 1024}};
  for (const auto& [dim, block] : blocks) EXPECT_EQ(RotationBlock(dim), block);
}

// 8 bits: half a step, and what rounding the scale to FP16 takes from the largest code.
TEST(QuantizeRowTest, EightBitErrorIsBounded) {
  std::mt19937 random(6);
  for (const size_t dim : kDims) {
    for (const float sigma : {1e-7f, 1e-4f, 1.0f, 1000.0f, 1e5f}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        const Row x = Gaussian(&random, dim, sigma);
        const Quantized q = Quantize(x, 8);
        const Row y = Dequantize(q, 8);
        EXPECT_GE(*std::min_element(q.codes.begin(), q.codes.end()), 1);
        const float scale = HalfToFloat(q.scale);
        // Unit of x. The last term: x * (1 / scale) + 128.5 is rounded three times, 2^-17 of a step at code 255.
        const double bound = scale / 2 + 127 * HalfRounding(scale) + 0x1p-15 * scale;
        for (size_t i = 0; i < dim; ++i) ASSERT_LE(std::fabs(x[i] - y[i]), bound) << dim << ", " << sigma;
        // Relative to the row; sums of at most 1024 rounded products.
        EXPECT_NEAR(q.error, Distance2(x, y), 1e-5 * Distance2(x, y) + 1e-12 * Norm2(x));
      }
    }
  }
}

// The best uniform quantizer of 16 levels has a mean squared error of 0.01154 on a Gaussian (Max, 1960). A row's own
// scale fits the row, so short rows do better; the search's grid and FP16 scales lose a little. Margin: 4%.
TEST(QuantizeRowTest, FourBitErrorOfGaussianRowsIsThatOfTheBestUniformQuantizer) {
  std::mt19937 random(7);
  for (const size_t dim : {64u, 128u, 256u}) {
    double error = 0;
    double norm = 0;
    for (int repeat = 0; repeat < 2000; ++repeat) {
      const Row x = Gaussian(&random, dim);
      const Quantized q = Quantize(x, 4);
      EXPECT_LE(*std::max_element(q.codes.begin(), q.codes.end()), 15);
      error += Distance2(x, Dequantize(q, 4));
      norm += Norm2(x);
    }
    EXPECT_LT(error / norm, 0.01154 * 1.04) << dim;
    EXPECT_GT(error / norm, 0.01154 * 0.75) << dim;
  }
}

TEST(QuantizeRowTest, SearchIsNeverWorseThanTheLargestValueAsScale) {
  std::mt19937 random(8);
  for (const size_t dim : kDims) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      Row x = Gaussian(&random, dim);
      if (repeat % 4 == 1) x[repeat % dim] = 30;  // one outlier
      if (repeat % 4 == 2)
        std::transform(x.begin(), x.end(), x.begin(), [](float v) { return v * v * v; });  // long tails
      if (repeat % 4 == 3) std::fill(x.begin() + 1, x.end(), 0.0f);                        // one value
      float absmax = 0;
      for (const float v : x) absmax = std::max(absmax, std::fabs(v));
      Quantized plain;
      plain.scale = FloatToHalf(absmax / 7.5f);
      for (const float v : x) {
        plain.codes.push_back(static_cast<uint8_t>(std::clamp(v / absmax * 7.5f + 8.0f, 0.0f, 15.0f)));
      }
      const Quantized q = Quantize(x, 4);
      const double error = Distance2(x, Dequantize(q, 4));
      // Relative to the row's squared length: rounding the fitted scale to FP16 (2^-22), and the sums in FP32.
      EXPECT_LE(error, Distance2(x, Dequantize(plain, 4)) + (0x1p-22 + 1e-6) * Norm2(x));
      // Relative: a partial sum rounds up to 64 times, by at most 2^-24 each.
      EXPECT_NEAR(q.error, error, 1e-5 * error + 1e-12 * Norm2(x));
    }
  }
}

TEST(QuantizeRowTest, ZeroRowsStayZero) {
  for (const int bits : {4, 8}) {
    for (const size_t dim : kDims) {
      const Quantized q = Quantize(Row(dim, 0.0f), bits);
      EXPECT_EQ(q.scale, 0);
      EXPECT_EQ(q.error, 0);
      for (const float v : Dequantize(q, bits)) EXPECT_EQ(v, 0.0f);
    }
  }
}

TEST(QuantizeRowTest, RowsOfOneMagnitudeAreAsGoodAsTheScale) {
  for (const int bits : {4, 8}) {
    for (const float magnitude : {1.0f, -1.0f, 0.03f, 5e4f}) {
      Row x(64, magnitude);
      for (size_t i = 0; i < x.size(); i += 3) x[i] = -magnitude;
      const Row y = Dequantize(Quantize(x, bits), bits);
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(y[i], x[i], std::fabs(magnitude) * (0x1p-11 + 0x1p-20)) << bits;  // FP16 rounding of the scale
      }
    }
  }
}

TEST(QuantizeRowTest, TinyRowsLoseAtMostTheScalesRounding) {
  std::mt19937 random(9);
  for (const int bits : {4, 8}) {
    for (const float sigma : {1e-30f, 1e-20f, 1e-9f, 0x1p-24f, 1e-6f}) {
      const Row x = Gaussian(&random, 64, sigma);
      const Row y = Dequantize(Quantize(x, bits), bits);
      // Scales are multiples of 2^-24 here: rounding moves the outermost code by 2^-25 times its level. At 4 bits the
      // quantizer's own error comes on top: clipping leaves at most 0.65 of the largest value.
      const double level = bits == 8 ? 127 : 7.5;
      float absmax = 0;
      for (const float v : x) absmax = std::max(absmax, std::fabs(v));
      const double own = bits == 8 ? absmax / 254 : 0.65 * absmax;
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_LE(std::fabs(x[i] - y[i]), level * 0x1p-25 + own) << bits << ", " << sigma;
    }
  }
}

// What was quantized once has a code at full scale, so the scale is found again: nothing drifts. (Subnormal scales are
// left out: they are too coarse to be found again.)
TEST(QuantizeRowTest, QuantizingAgainChangesNothing) {
  std::mt19937 random(10);
  for (const int bits : {4, 8}) {
    for (const size_t dim : kDims) {
      for (int repeat = 0; repeat < 100; ++repeat) {
        const Quantized first = Quantize(Gaussian(&random, dim, std::exp2(static_cast<float>(repeat % 20 - 7))), bits);
        ASSERT_GE(first.scale, 0x0400);
        const Quantized second = Quantize(Dequantize(first, bits), bits);
        ASSERT_EQ(second.codes, first.codes) << bits << " bits, dim " << dim;
        ASSERT_EQ(second.scale, first.scale) << bits << " bits, dim " << dim;
      }
    }
  }
}

// Rows that are the same on every machine.
Row FixedRow(uint64_t seed, size_t dim) {
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  Row x(dim);
  for (float& v : x) {
    v = 0;
    for (int i = 0; i < 4; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      v += static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
    }
  }
  return x;
}

// The codes are part of the format's meaning: all compilers, optimization levels and instruction sets give these.
TEST(QuantizeRowTest, GoldenCodes) {
  std::string digests;
  for (const int bits : {4, 8}) {
    Blake2bHasher hasher;
    for (const size_t dim : kDims) {
      for (uint64_t seed = 0; seed < 200; ++seed) {
        Row x = FixedRow(seed, dim);
        Selected().rotate(x.data(), dim, RotationBlock(dim));
        const Quantized q = Quantize(x, bits);
        hasher.Update(q.codes);
        hasher.UpdateValue(q.scale);
        hasher.UpdateValue(q.error);
      }
    }
    digests += ToHex(hasher.Finish()) + "\n";
  }
  EXPECT_EQ(digests,
            "17b50eb247bc1150d7a68c74b6791dd00efad72135430851fcce105fbf2563a3\n"
            "ccfa18d843cf160731e33fe3a66620060fb74898307ef6aad6d6d90ba2640bfd\n");
}

TEST(SelectKernelsTest, EnvironmentForcesASet) {
  const char* value = std::getenv("QKV_FORCE_ISA");
  const bool had = value != nullptr;
  const std::string old = had ? value : "";
  setenv("QKV_FORCE_ISA", "scalar", 1);
  EXPECT_EQ(*SelectKernels(), &ScalarKernels());
  setenv("QKV_FORCE_ISA", "mmx", 1);
  EXPECT_EQ(SelectKernels().status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(SelectKernels().status().message().find("mmx"), std::string::npos);
  setenv("QKV_FORCE_ISA", "", 1);
  EXPECT_TRUE(SelectKernels());
  had ? setenv("QKV_FORCE_ISA", old.c_str(), 1) : unsetenv("QKV_FORCE_ISA");
}

}  // namespace
}  // namespace qkvshare
