#include "quant/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace qkvshare {
namespace {

constexpr size_t kDims[] = {8, 64, 72, 80, 96, 128, 256, kMaxHeadDim};

using Row = std::vector<float>;

struct Quantized {
  std::vector<uint8_t> codes;
  RowScale scale = 0;
  float error = 0;
};

// Every test runs on every set that this CPU has.
class KernelsTest : public testing::TestWithParam<const Kernels*> {
 protected:
  static const Kernels& Tested() { return *GetParam(); }

  static Quantized Quantize(const Row& x, int bits) {
    Quantized result;
    result.codes.resize(x.size());
    result.error = Tested().quantize_row(x.data(), x.size(), bits, result.codes.data(), &result.scale);
    return result;
  }
};
using RotateTest = KernelsTest;
using QuantizeRowTest = KernelsTest;

std::string NameOf(const testing::TestParamInfo<const Kernels*>& info) { return info.param->name; }
INSTANTIATE_TEST_SUITE_P(, KernelsTest, testing::ValuesIn(AvailableKernels()), NameOf);
INSTANTIATE_TEST_SUITE_P(, RotateTest, testing::ValuesIn(AvailableKernels()), NameOf);
INSTANTIATE_TEST_SUITE_P(, QuantizeRowTest, testing::ValuesIn(AvailableKernels()), NameOf);

// What the codes stand for, as the format says.
Row Dequantize(const Quantized& q, int bits) {
  const float step = std::bit_cast<float>(static_cast<uint32_t>(q.scale & 0x7FFF) << 16);
  const float zero = static_cast<float>(1 << (bits - 1)) - (q.scale >> 15 != 0 ? 0.0f : 0.5f);
  Row x;
  for (const uint8_t code : q.codes) x.push_back((static_cast<float>(code) - zero) * step);
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

TEST_P(RotateTest, IsTheOrthonormalHadamardMatrix) {
  for (const size_t block : {8u, 16u, 32u, 64u, 128u}) {
    for (size_t column = 0; column < block; ++column) {
      Row x(block, 0.0f);
      x[column] = 1.0f;
      Tested().rotate(x.data(), block, block);
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

TEST_P(RotateTest, KeepsLengthAndIsItsOwnInverse) {
  std::mt19937 random(4);
  for (const size_t dim : kDims) {
    const Row x = Gaussian(&random, dim);
    Row y = x;
    Tested().rotate(y.data(), dim, RotationBlock(dim));
    EXPECT_GT(Distance2(x, y), 0.1 * Norm2(x));
    // Relative; each of at most 10 steps and the factor round each value once, by at most 2^-24.
    EXPECT_NEAR(Norm2(y) / Norm2(x), 1.0, 11 * 2 * 0x1p-24);
    Tested().rotate(y.data(), dim, RotationBlock(dim));
    EXPECT_LT(std::sqrt(Distance2(x, y) / Norm2(x)), 22 * 0x1p-24);
  }
}

TEST_P(RotateTest, BlocksAreIndependent) {
  std::mt19937 random(5);
  const Row x = Gaussian(&random, 72);
  Row whole = x;
  Tested().rotate(whole.data(), 72, 8);
  for (size_t i = 0; i < 72; i += 8) {
    Row part(x.begin() + static_cast<std::ptrdiff_t>(i), x.begin() + static_cast<std::ptrdiff_t>(i + 8));
    Tested().rotate(part.data(), 8, 8);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(i)));
  }
}

TEST_P(RotateTest, BlockIsTheLargestPowerOfTwoThatDivides) {
  const std::pair<size_t, size_t> blocks[] = {{8, 8},   {64, 64},   {72, 8},    {80, 16},
                                              {96, 32}, {128, 128}, {256, 256}, {1024, 1024}};
  for (const auto& [dim, block] : blocks) EXPECT_EQ(RotationBlock(dim), block);
}

// Bounds of the codecs. 8 bits: half a step for every value.
TEST_P(QuantizeRowTest, EightBitErrorIsAtMostHalfAStep) {
  std::mt19937 random(6);
  for (const size_t dim : kDims) {
    for (const float sigma : {1e-7f, 1e-4f, 1.0f, 1000.0f, 1e5f}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        const Row x = Gaussian(&random, dim, sigma);
        const Quantized q = Quantize(x, 8);
        const Row y = Dequantize(q, 8);
        EXPECT_GE(*std::min_element(q.codes.begin(), q.codes.end()), 1);
        EXPECT_EQ(ScaleGrid(q.scale), CodeGrid::kMidTread);
        const float step = ScaleStep(q.scale);
        float absmax = 0;
        for (const float v : x) absmax = std::max(absmax, std::fabs(v));
        EXPECT_LT(absmax, 127.5f * step);
        EXPECT_GE(absmax, 126.5f * step);
        // x * (1 / step) + 128.5 is rounded three times, 2^-17 of a step at code 255.
        for (size_t i = 0; i < dim; ++i) ASSERT_LE(std::fabs(x[i] - y[i]), step * (0.5 + 0x1p-15)) << dim << sigma;
        // Relative to the row; sums of at most 1024 rounded products.
        EXPECT_NEAR(q.error, Distance2(x, y), 1e-5 * Distance2(x, y) + 1e-12 * Norm2(x));
      }
    }
  }
}

// The best uniform quantizers of 16 and 4 levels have mean squared errors of 0.01154 and 0.1188 on a Gaussian (Max,
// 1960). A row's own scale and grid fit the row, so short rows do better. At 2 bits keeping the length costs up to
// a quarter of the error e: from e to 2 - 2 * sqrt(1 - e).
TEST_P(QuantizeRowTest, ErrorOfGaussianRowsIsThatOfTheBestUniformQuantizer) {
  std::mt19937 random(7);
  for (const size_t dim : {64u, 128u, 256u}) {
    for (const auto& [bits, best] : {std::pair{4, 0.01154}, std::pair{2, 2 - 2 * std::sqrt(1 - 0.1188)}}) {
      double error = 0;
      double norm = 0;
      for (int repeat = 0; repeat < 2000; ++repeat) {
        const Row x = Gaussian(&random, dim);
        const Quantized q = Quantize(x, bits);
        EXPECT_LT(*std::max_element(q.codes.begin(), q.codes.end()), 1 << bits);
        error += Distance2(x, Dequantize(q, bits));
        norm += Norm2(x);
      }
      EXPECT_LT(error / norm, best * 1.02) << dim << ", " << bits;
      EXPECT_GT(error / norm, best * 0.65) << dim << ", " << bits;
    }
  }
}

// Rows of many kinds: outliers, long tails, single values, sparse ones.
Row AnyRow(std::mt19937* random, size_t dim, int kind) {
  Row x = Gaussian(random, dim);
  if (kind % 5 == 1) x[static_cast<size_t>(kind) % dim] = 30;
  if (kind % 5 == 2) std::transform(x.begin(), x.end(), x.begin(), [](float v) { return v * v * v; });
  if (kind % 5 == 3) std::fill(x.begin() + 1, x.end(), 0.0f);
  if (kind % 5 == 4) std::transform(x.begin(), x.end(), x.begin(), [](float v) { return v < 1 ? 0.0f : v; });
  if (Norm2(x) == 0) x[0] = 1;
  return x;
}

TEST_P(QuantizeRowTest, TwoBitsKeepTheLengthOfARow) {
  std::mt19937 random(11);
  for (const size_t dim : kDims) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      const Row x = AnyRow(&random, dim, repeat);
      // Relative: rounding the scale, 2^-8 at most, and sums in FP32.
      EXPECT_NEAR(std::sqrt(Norm2(Dequantize(Quantize(x, 2), 2)) / Norm2(x)), 1.0, 0x1p-8 + 1e-5);
    }
  }
}

TEST_P(QuantizeRowTest, SearchIsNeverWorseThanTheLargestValueAsScale) {
  std::mt19937 random(8);
  for (const size_t dim : kDims) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      const Row x = AnyRow(&random, dim, repeat);
      float absmax = 0;
      for (const float v : x) absmax = std::max(absmax, std::fabs(v));
      double plain = 0;
      for (const float v : x) {
        const double code = std::clamp(std::floor(v / absmax * 7.5f + 8.0f), 0.0f, 15.0f);
        plain += std::pow(static_cast<double>(v) - (code - 7.5) * static_cast<double>(absmax / 7.5f), 2);
      }
      const Quantized q = Quantize(x, 4);
      const double error = Distance2(x, Dequantize(q, 4));
      // Relative to the row's squared length: rounding the fitted scale (2^-8, squared), and the sums in FP32.
      EXPECT_LE(error, plain + (0x1p-16 + 1e-6) * Norm2(x));
      // Relative: a partial sum rounds up to 64 times, by at most 2^-24 each.
      EXPECT_NEAR(q.error, error, 1e-5 * error + 1e-12 * Norm2(x));
    }
  }
}

TEST_P(QuantizeRowTest, ZeroRowsStayZero) {
  for (const int bits : {2, 4, 8}) {
    for (const size_t dim : kDims) {
      const Quantized q = Quantize(Row(dim, 0.0f), bits);
      EXPECT_EQ(q.scale, 0);
      EXPECT_EQ(q.error, 0);
      for (const float v : Dequantize(q, bits)) EXPECT_EQ(v, 0.0f);
    }
  }
}

// One value among zeros is what a constant row is after rotation. Both signs: the grid has one level more below zero.
TEST_P(QuantizeRowTest, SpikesAndRowsOfOneMagnitudeAreAsGoodAsTheScale) {
  for (const int bits : {2, 4, 8}) {
    for (const float magnitude : {1.0f, -1.0f, 0.03f, 5e4f, 2e6f, 1e-9f}) {
      Row spike(64, 0.0f);
      spike[7] = magnitude;
      Row alike(64, magnitude);
      for (size_t i = 0; i < alike.size(); i += 3) alike[i] = -magnitude;
      for (const Row& x : {spike, alike}) {
        const Row y = Dequantize(Quantize(x, bits), bits);
        // Rounding of the scale, up at 8 bits.
        for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], std::fabs(x[i]) * 0x1p-7) << bits << magnitude;
      }
    }
  }
}

// Every row that FP16 can hold, and its rotation (1024 values of 65,504 make one of 2e6), is inside the codec's range.
TEST_P(QuantizeRowTest, RowsOfEverySizeHaveTheSameRelativeError) {
  std::mt19937 random(9);
  for (const int bits : {2, 4, 8}) {
    const Row x = Gaussian(&random, 64);
    const Quantized q = Quantize(x, bits);
    for (const int exponent : {-40, -30, -24, -14, -5, 5, 15, 20}) {
      Row scaled = x;
      for (float& v : scaled) v = std::ldexp(v, exponent);
      const Quantized s = Quantize(scaled, bits);
      EXPECT_EQ(s.codes, q.codes) << bits << ", " << exponent;
      EXPECT_EQ(ScaleStep(s.scale), std::ldexp(ScaleStep(q.scale), exponent));
    }
  }
}

// What was quantized once lies on its grid, so codes and scale are found again: nothing drifts.
TEST_P(QuantizeRowTest, QuantizingAgainChangesNothing) {
  std::mt19937 random(10);
  for (const int bits : {2, 4, 8}) {
    for (const size_t dim : kDims) {
      for (int repeat = 0; repeat < 200; ++repeat) {
        Row x = AnyRow(&random, dim, repeat);
        for (float& v : x) v = std::ldexp(v, repeat % 40 - 20);
        const Quantized first = Quantize(x, bits);
        const Quantized second = Quantize(Dequantize(first, bits), bits);
        ASSERT_EQ(Dequantize(second, bits), Dequantize(first, bits)) << bits << " bits, dim " << dim << ", " << repeat;
        if (dim < 64) continue;  // a row of 8 values may lie on both grids
        ASSERT_EQ(second.codes, first.codes) << bits << " bits, dim " << dim << ", " << repeat;
        ASSERT_EQ(second.scale, first.scale) << bits << " bits, dim " << dim << ", " << repeat;
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

// FNV-1a.
class Checksum {
 public:
  template <typename T>
  void Add(const T& value) {
    for (const uint8_t byte : std::bit_cast<std::array<uint8_t, sizeof(T)>>(value)) {
      hash_ = (hash_ ^ byte) * 0x100000001B3u;
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325u;
};

// The codes are part of the format's meaning: all compilers, optimization levels and instruction sets give these.
TEST_P(QuantizeRowTest, GoldenCodes) {
  for (const auto& [bits, golden] :
       {std::pair{2, 0xF04ADB4F233374D3u}, {4, 0x405419B8441BD2A5u}, {8, 0xC463A562C963F41Fu}}) {
    Checksum checksum;
    for (const size_t dim : kDims) {
      for (uint64_t seed = 0; seed < 200; ++seed) {
        Row x = FixedRow(seed, dim);
        Tested().rotate(x.data(), dim, RotationBlock(dim));
        const Quantized q = Quantize(x, bits);
        for (const uint8_t code : q.codes) checksum.Add(code);
        checksum.Add(q.scale);
        checksum.Add(q.error);
      }
    }
    EXPECT_EQ(checksum.value(), golden) << bits << " bits";
  }
}

// And these are the rows that are restored from them.
TEST_P(KernelsTest, GoldenRows) {
  Checksum checksum;
  for (const size_t dim : kDims) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      std::vector<Half> row(dim);
      Row x = FixedRow(seed, dim);
      std::transform(x.begin(), x.end(), row.begin(), FloatToHalf);
      const Row mean = FixedRow(seed + 1000, dim);
      const Row scale(dim, 2.0f);
      const Row inverse_scale(dim, 0.5f);
      const RowSpace space = {dim, RotationBlock(dim), mean.data(), scale.data(), inverse_scale.data()};
      for (const int bits : {2, 4, 8}) {
        ASSERT_TRUE(Tested().transform_row(row.data(), space, x.data()));
        const Quantized q = Quantize(x, bits);
        std::vector<Half> back(dim);
        Tested().restore_row(q.codes.data(), bits, q.scale, space, back.data());
        for (const Half h : back) checksum.Add(h);
      }
    }
  }
  EXPECT_EQ(checksum.value(), 0xFECA91801FDC91ACu);
}

// A set that the build lost would take its tests with it, unnoticed.
TEST(SelectKernelsTest, AllSetsOfThisCpuAreThere) {
  std::vector<std::string> expected = {"scalar"};
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  if (avx2) expected.insert(expected.begin(), "avx2");
  if (avx512) expected.insert(expected.begin(), "avx512");
#elif defined(__aarch64__)
  expected.insert(expected.begin(), "neon");
#endif
  std::vector<std::string> names;
  for (const Kernels* kernels : AvailableKernels()) names.emplace_back(kernels->name);
  EXPECT_EQ(names, expected);
}

// Before any test changes the environment: what was asked for from outside is what runs.
TEST(SelectKernelsTest, TheSetThatTheCallerForcesIsTaken) {
  const char* forced = std::getenv("QKV_FORCE_ISA");
  if (forced == nullptr || *forced == '\0') GTEST_SKIP() << "QKV_FORCE_ISA is not set";
  const Result<const Kernels*> kernels = SelectKernels();
  ASSERT_TRUE(kernels) << kernels.status().message();
  EXPECT_STREQ((*kernels)->name, forced);
}

TEST(SelectKernelsTest, EnvironmentForcesASet) {
  const char* value = std::getenv("QKV_FORCE_ISA");
  const bool had = value != nullptr;
  const std::string old = had ? value : "";
  setenv("QKV_FORCE_ISA", "scalar", 1);
  EXPECT_EQ(*SelectKernels(), &ScalarKernels());
  setenv("QKV_FORCE_ISA", "mmx", 1);
  EXPECT_EQ(SelectKernels().status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(SelectKernels().status().message().find("QKV_FORCE_ISA=mmx"), std::string::npos);
  EXPECT_NE(SelectKernels().status().message().find("scalar"), std::string::npos);
  for (const Kernels* kernels : AvailableKernels()) {
    setenv("QKV_FORCE_ISA", kernels->name, 1);
    EXPECT_EQ(*SelectKernels(), kernels);
  }
  setenv("QKV_FORCE_ISA", "", 1);
  EXPECT_EQ(*SelectKernels(), AvailableKernels().front());
  had ? setenv("QKV_FORCE_ISA", old.c_str(), 1) : unsetenv("QKV_FORCE_ISA");
}

}  // namespace
}  // namespace qkvshare
