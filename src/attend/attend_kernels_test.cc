// Every set against the scalar one. Where integers meet the eye they must be equal; floats may differ by the rounding
// of as many operations as their sums have, relative to the sum of the terms' magnitudes.
#include "attend/attend_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attend/attend_simd.h"
#include "quant/tile.h"

namespace qkvshare {
namespace {

using Random = std::mt19937;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr RowScale kUnitScale = 0x3F80;  // step 1, mid-rise

enum class Codes { kRandom, kLargest, kSmallest };

class AttendKernelsTest : public testing::TestWithParam<const AttendKernels*> {
 protected:
  static const AttendKernels& Tested() { return *GetParam(); }
  static const AttendKernels& Reference() { return ScalarAttendKernels(); }

  // Calls test(bits, dim, rows, tiles, random) for all widths and sizes and some numbers of rows and tiles.
  template <typename Test>
  static void ForAllShapes(const Test& test) {
    Random random(1);
    for (const int bits : {2, 4, 8}) {
      for (const size_t dim : {8, 16, 24, 64, 72, 80, 96, 128, 256, 1024}) {
        for (const size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 31, 64}) {
          test(bits, dim, rows, size_t{1} + random() % 16, &random);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};

// Two sets may have one name: the second gets a number.
std::string SetName(const testing::TestParamInfo<const AttendKernels*>& set) {
  const std::vector<const AttendKernels*> sets = SimdAttendKernels();
  const auto earlier = std::count_if(sets.begin(), sets.begin() + static_cast<std::ptrdiff_t>(set.index),
                                     [&](const AttendKernels* k) { return std::string(k->name) == set.param->name; });
  return set.param->name + (earlier == 0 ? "" : std::to_string(earlier + 1));
}

INSTANTIATE_TEST_SUITE_P(, AttendKernelsTest, testing::ValuesIn(SimdAttendKernels()), SetName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttendKernelsTest);  // a CPU may have none

std::vector<float> Normal(Random* random, size_t n, float deviation) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = deviation * normal(*random);
  return values;
}

std::vector<Half> NormalHalves(Random* random, size_t n) {
  std::vector<Half> halves;
  for (const float x : Normal(random, n, 2)) halves.push_back(FloatToHalf(x));
  return halves;
}

// Steps of all sizes that rows have, some zero, on both grids.
std::vector<RowScale> Scales(Random* random, size_t tokens) {
  std::vector<RowScale> scales(tokens);
  for (RowScale& scale : scales) {
    const float step = std::exp(Normal(random, 1, 1)[0]);
    scale = MakeScale(step, (*random)() % 2 == 0 ? CodeGrid::kMidRise : CodeGrid::kMidTread);
    if ((*random)() % 16 == 0) scale &= 0x8000;
  }
  return scales;
}

std::vector<uint8_t> Tiles(Random* random, Side side, int bits, size_t dim, size_t count, Codes kind) {
  const size_t bytes = TileBytes(kTileTokens, dim, bits);
  // No byte more, and at an odd address.
  std::vector<uint8_t> tiles(1 + count * bytes);
  std::vector<uint8_t> codes(kTileTokens * dim);
  for (size_t tile = 0; tile < count; ++tile) {
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(kind == Codes::kRandom    ? (*random)() % (1u << bits)
                                  : kind == Codes::kLargest ? (1u << bits) - 1
                                                            : 0);
    }
    PackTile(side, codes.data(), kTileTokens, dim, bits, &tiles[1 + tile * bytes]);
  }
  return tiles;
}

struct Queries {
  std::vector<int8_t> codes;
  std::vector<float> scale, bias;
  std::vector<int32_t> sum;
  size_t stride;

  Queries(Random* random, size_t rows, size_t dim, Codes kind)
      : codes(rows * PackedQueryStride(dim)),
        scale(rows, 1),
        bias(rows, 0),
        sum(rows, 0),
        stride(PackedQueryStride(dim)) {
    for (size_t row = 0; row < rows; ++row) {
      for (size_t c = 0; c < dim; ++c) {
        const auto code = kind == Codes::kRandom    ? static_cast<int>((*random)() % 255) - 127
                          : kind == Codes::kLargest ? 127
                                                    : -127;
        codes[row * stride + c] = static_cast<int8_t>(code);
        sum[row] += code;
      }
    }
  }
  PackedQueries view() const { return {codes.data(), stride, scale.data(), sum.data(), bias.data()}; }
};

void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected, float tolerance,
                const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance) << what << ", " << i;
}

TEST_P(AttendKernelsTest, QuantizeQuery) {
  Random random(2);
  for (size_t dim = 8; dim <= 256; dim += 8) {
    for (const float size : {0.0f, 1e-38f, 0x1p-100f, 1e-3f, 1.0f, 1e30f}) {
      for (const bool halves : {false, true}) {
        std::vector<float> q = Normal(&random, dim, size);
        q[random() % dim] = 127 * size;
        if (halves) {  // ties
          for (float& x : q) x = (std::floor(x / size) + 0.5f) * size;
          q[0] = 127 * size;
        }
        const size_t stride = PackedQueryStride(dim);
        std::vector<int8_t> expected(stride, 1);
        std::vector<int8_t> actual(stride, 1);
        int32_t expected_sum = 1;
        int32_t actual_sum = 2;
        const float expected_scale = Reference().quantize_query(q.data(), dim, expected.data(), stride, &expected_sum);
        const float scale = Tested().quantize_query(q.data(), dim, actual.data(), stride, &actual_sum);
        ASSERT_EQ(scale, expected_scale) << dim << ", " << size;
        ASSERT_EQ(actual, expected) << dim << ", " << size;
        ASSERT_EQ(actual_sum, expected_sum);
      }
    }
  }
}

// With units for scales, scores are the integers.
TEST_P(AttendKernelsTest, KeySumsAreExact) {
  ForAllShapes([](int bits, size_t dim, size_t rows, size_t count, Random* random) {
    const auto kind = dim % 64 == 0 ? static_cast<Codes>((*random)() % 3) : Codes::kRandom;
    const std::vector<uint8_t> tiles = Tiles(random, Side::kKeys, bits, dim, count, kind);
    const Queries queries(random, rows, dim, rows % 2 == 0 ? kind : Codes::kRandom);
    const std::vector<RowScale> scales(count * kTileTokens, kUnitScale);
    const size_t stride = count * kTileTokens + rows % 2 * 3;
    std::vector<float> expected(rows * stride, 5);
    std::vector<float> actual(rows * stride, 5);
    Reference().key_dots(&tiles[1], bits, count, dim, scales.data(), queries.view(), rows, expected.data(), stride);
    Tested().key_dots(&tiles[1], bits, count, dim, scales.data(), queries.view(), rows, actual.data(), stride);
    // Beyond 2^24 the subtraction of the zero codes' part rounds, once.
    if (dim <= 256) {
      ASSERT_EQ(actual, expected) << bits << " bits, " << dim << ", " << rows << " rows, " << count << " tiles";
    } else {
      ExpectNear(actual, expected, 8, "key_dots");
    }
  });
}

TEST_P(AttendKernelsTest, KeyDots) {
  ForAllShapes([](int bits, size_t dim, size_t rows, size_t count, Random* random) {
    const std::vector<uint8_t> tiles = Tiles(random, Side::kKeys, bits, dim, count, Codes::kRandom);
    Queries queries(random, rows, dim, Codes::kRandom);
    queries.scale = Normal(random, rows, 0.01f);
    queries.bias = Normal(random, rows, 10);
    const std::vector<RowScale> scales = Scales(random, count * kTileTokens);
    const size_t stride = count * kTileTokens;
    std::vector<float> expected(rows * stride);
    std::vector<float> actual(rows * stride);
    Reference().key_dots(&tiles[1], bits, count, dim, scales.data(), queries.view(), rows, expected.data(), stride);
    Tested().key_dots(&tiles[1], bits, count, dim, scales.data(), queries.view(), rows, actual.data(), stride);
    for (size_t row = 0; row < rows; ++row) {
      for (size_t t = 0; t < stride; ++t) {
        const float units = std::fabs(queries.scale[row]) * ScaleStep(scales[t]);
        const float terms = units * static_cast<float>(dim * 127) * static_cast<float>(1 << bits);
        ASSERT_NEAR(actual[row * stride + t], expected[row * stride + t],
                    0x1p-22f * (terms + std::fabs(queries.bias[row])))
            << bits << " bits, " << dim << ", " << rows << " rows, " << count << " tiles";
      }
    }
  });
}

// A block of probabilities, some zero.
std::vector<float> Probabilities(Random* random, size_t rows, size_t stride) {
  std::vector<float> p(rows * stride);
  std::normal_distribution<float> normal(-4, 3);
  for (float& x : p) x = (*random)() % 8 == 0 ? 0 : std::min(1.0f, std::exp(normal(*random)));
  return p;
}

struct Weights {
  std::vector<int16_t> values;
  std::vector<float> unit, zeros;

  Weights(const AttendKernels& kernels, const std::vector<float>& p, size_t rows, size_t stride,
          const std::vector<RowScale>& scales, int bits)
      : values(rows * stride), unit(rows, 7), zeros(rows, 7) {
    kernels.quantize_weights(p.data(), stride, scales.size(), rows, scales.data(), bits, values.data(), unit.data(),
                             zeros.data());
  }
};

std::vector<float> Sums(const AttendKernels& kernels, const std::vector<uint8_t>& tiles, int bits, size_t count,
                        size_t dim, const Weights& weights, size_t stride, const std::vector<float>& unit,
                        const std::vector<float>& zeros, std::vector<float> acc) {
  kernels.value_sums(&tiles[1], bits, count, dim, weights.values.data(), stride, unit.data(), zeros.data(), unit.size(),
                     acc.data());
  return acc;
}

// Each set orders weights as it likes: that they are the same shows in sums, which in units are integers.
TEST_P(AttendKernelsTest, WeightsAndValueSumsAreExact) {
  ForAllShapes([](int bits, size_t dim, size_t rows, size_t count, Random* random) {
    const auto kind = static_cast<Codes>((*random)() % 2);
    const std::vector<uint8_t> tiles = Tiles(random, Side::kValues, bits, dim, count, kind);
    const std::vector<RowScale> scales =
        rows % 2 == 0 ? Scales(random, count * kTileTokens) : std::vector<RowScale>(count * kTileTokens, kUnitScale);
    const size_t stride = count * kTileTokens + rows % 3 * 16;
    std::vector<float> p = Probabilities(random, rows, stride);
    if (rows % 3 == 0) std::fill_n(p.begin(), stride, 0.0f);
    if (rows % 3 == 1) std::fill_n(p.begin(), stride, 0.7f);  // the largest sums there are
    const Weights expected(Reference(), p, rows, stride, scales, bits);
    const Weights actual(Tested(), p, rows, stride, scales, bits);
    ASSERT_EQ(actual.unit, expected.unit);
    for (size_t row = 0; row < rows; ++row) {
      ASSERT_NEAR(actual.zeros[row], expected.zeros[row], 0x1p-16f * expected.zeros[row]);  // 256 sums in floats
    }
    const std::vector<float> ones(rows, 1);
    const std::vector<float> none(rows, 0);
    const std::vector<float> acc(rows * dim, 0);
    ASSERT_EQ(Sums(Tested(), tiles, bits, count, dim, actual, stride, ones, none, acc),
              Sums(Reference(), tiles, bits, count, dim, expected, stride, ones, none, acc))
        << bits << " bits, " << dim << ", " << rows << " rows, " << count << " tiles";
  });
}

TEST_P(AttendKernelsTest, ValueSums) {
  ForAllShapes([](int bits, size_t dim, size_t rows, size_t count, Random* random) {
    const std::vector<uint8_t> tiles = Tiles(random, Side::kValues, bits, dim, count, Codes::kRandom);
    const std::vector<RowScale> scales = Scales(random, count * kTileTokens);
    const size_t stride = count * kTileTokens;
    const std::vector<float> p = Probabilities(random, rows, stride);
    const Weights reference(Reference(), p, rows, stride, scales, bits);
    const Weights tested(Tested(), p, rows, stride, scales, bits);
    const std::vector<float> acc = Normal(random, rows * dim, 1);
    const std::vector<float> expected =
        Sums(Reference(), tiles, bits, count, dim, reference, stride, reference.unit, reference.zeros, acc);
    // The reference's zeros too: what the sums make of them is tested here.
    const std::vector<float> actual =
        Sums(Tested(), tiles, bits, count, dim, tested, stride, reference.unit, reference.zeros, acc);
    for (size_t i = 0; i < acc.size(); ++i) {
      const size_t row = i / dim;
      ASSERT_NEAR(actual[i], expected[i], 0x1p-22f * (std::fabs(acc[i]) + reference.unit[row] * reference.zeros[row]));
    }
  });
}

// ---- Softmax ----

struct SoftmaxState {
  std::vector<float> scores, max, sum, rescale;

  void Run(const AttendKernels& kernels, SoftmaxBlock block) {
    block.scores = scores.data();
    block.max = max.data();
    block.sum = sum.data();
    block.rescale = rescale.data();
    kernels.softmax(block);
  }
};

// A relative difference of 4e-7 where scores are near the maximum, of 1e-7 more a unit below it.
void ExpectSameSoftmax(const SoftmaxState& actual, const SoftmaxState& expected, float error) {
  ASSERT_EQ(actual.max.size(), expected.max.size());
  for (size_t row = 0; row < actual.max.size(); ++row) {
    if (std::isinf(expected.max[row])) {
      ASSERT_EQ(actual.max[row], expected.max[row]);
    } else {
      ASSERT_NEAR(actual.max[row], expected.max[row], error);
    }
    ASSERT_NEAR(actual.sum[row], expected.sum[row], (2e-6f + error) * expected.sum[row]);
    ASSERT_NEAR(actual.rescale[row], expected.rescale[row], (1e-6f + error) * expected.rescale[row]);
  }
  for (size_t i = 0; i < actual.scores.size(); ++i) {
    const float w = expected.scores[i];
    if (w == 0) {
      ASSERT_LT(actual.scores[i], 1e-37f) << i;
      ASSERT_GE(actual.scores[i], 0.0f) << i;
      continue;
    }
    ASSERT_NEAR(actual.scores[i], w, w * (4e-7f - 1e-7f * std::log(w) + 2 * error) + 1e-37f) << i;
  }
}

// Blocks one after the other, so that maximum and sum run; hard scores among them.
TEST_P(AttendKernelsTest, Softmax) {
  Random random(3);
  for (const float size : {0.0f, 1.0f, 10.0f, 3000.0f, 1e30f}) {
    for (const size_t tokens : {16, 32, 112, 256}) {
      constexpr size_t kRows = 7;
      SoftmaxState expected = {
          {}, std::vector<float>(kRows, -kInfinity), std::vector<float>(kRows, 0), std::vector<float>(kRows, 9)};
      SoftmaxState actual = expected;
      for (int i = 0; i < 4; ++i) {
        const size_t stride = tokens + 16;
        expected.scores = Normal(&random, kRows * stride, size);
        actual.scores = expected.scores;
        SoftmaxBlock block;
        block.rows = kRows;
        block.tokens = tokens;
        block.stride = stride;
        block.end = tokens;
        // What lies beyond the tokens stays.
        expected.Run(Reference(), block);
        actual.Run(Tested(), block);
        for (size_t row = 0; row < kRows; ++row) {
          for (size_t t = tokens; t < stride; ++t) {
            ASSERT_EQ(actual.scores[row * stride + t], expected.scores[row * stride + t]);
            actual.scores[row * stride + t] = expected.scores[row * stride + t] = 0;
          }
        }
        ExpectSameSoftmax(actual, expected, 0);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(AttendKernelsTest, SoftmaxMasks) {
  Random random(4);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const size_t rows = 1 + random() % 9;
    const size_t tokens = (1 + random() % 16) * 16;
    SoftmaxState expected = {Normal(&random, rows * tokens, 4), std::vector<float>(rows, -kInfinity),
                             std::vector<float>(rows, 0), std::vector<float>(rows, 9)};
    if (repeat % 2 == 0) {
      std::fill(expected.max.begin(), expected.max.end(), 1.0f);
      std::fill(expected.sum.begin(), expected.sum.end(), 3.0f);
    }
    SoftmaxState actual = expected;
    std::vector<uint32_t> first(rows);
    for (uint32_t& f : first) f = random() % 3 == 0 ? 0 : static_cast<uint32_t>(random() % (tokens + 2));
    std::vector<Half> mask(rows * tokens);
    for (Half& m : mask) m = random() % 2 == 0 ? Half{0xFC00} : FloatToHalf(Normal(&random, 1, 1)[0]);
    if (repeat % 5 == 0) std::fill(mask.begin(), mask.end(), Half{0xFC00});
    std::vector<const Half*> masks(rows);
    for (size_t row = 0; row < rows; ++row) masks[row] = &mask[row * tokens];
    SoftmaxBlock block;
    block.rows = rows;
    block.tokens = tokens;
    block.stride = tokens;
    block.end = repeat % 3 == 0 ? tokens : random() % (tokens + 1);
    block.first_visible = repeat % 4 < 2 ? first.data() : nullptr;
    block.mask = repeat % 7 < 3 ? masks.data() : nullptr;
    block.softcap = repeat % 6 == 0 ? 30.0f : 0.0f;
    expected.Run(Reference(), block);
    actual.Run(Tested(), block);
    ExpectSameSoftmax(actual, expected, block.softcap * 2e-7f);
    if (HasFatalFailure()) return;
  }
}

// ---- FP16 ----

TEST_P(AttendKernelsTest, ExactKeyDots) {
  Random random(5);
  for (const size_t dim : {8, 64, 72, 80, 96, 128, 256, 1024}) {
    for (const size_t rows : {1, 2, 5, 7, 8, 12, 64}) {
      const size_t tokens = random() % 70;
      const size_t key_stride = dim + random() % 3 * 8;
      const size_t stride = AlignUp(tokens, kTileTokens);
      const std::vector<Half> keys = NormalHalves(&random, tokens == 0 ? 0 : (tokens - 1) * key_stride + dim);
      const std::vector<float> queries = Normal(&random, rows * dim, 1);
      std::vector<float> expected(rows * stride, 5);
      std::vector<float> actual(rows * stride, 5);
      Reference().exact_key_dots(keys.data(), key_stride, tokens, dim, queries.data(), rows, expected.data(), stride);
      Tested().exact_key_dots(keys.data(), key_stride, tokens, dim, queries.data(), rows, actual.data(), stride);
      // Terms are about 2, and errors of a sum of dim of them add up at random.
      ExpectNear(actual, expected, 1e-6f * static_cast<float>(dim), "exact_key_dots");
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttendKernelsTest, ExactValueSums) {
  Random random(6);
  for (const size_t dim : {8, 64, 72, 80, 96, 128, 256, 1024}) {
    for (const size_t rows : {1, 2, 5, 7, 8, 12, 64}) {
      const size_t tokens = random() % 70;
      const size_t value_stride = dim + random() % 3 * 8;
      const size_t stride = AlignUp(tokens, kTileTokens);
      const std::vector<Half> values = NormalHalves(&random, tokens == 0 ? 0 : (tokens - 1) * value_stride + dim);
      const std::vector<float> weights = Probabilities(&random, rows, stride);
      std::vector<float> expected = Normal(&random, rows * dim, 1);
      std::vector<float> actual = expected;
      Reference().exact_value_sums(values.data(), value_stride, tokens, dim, weights.data(), stride, rows,
                                   expected.data());
      Tested().exact_value_sums(values.data(), value_stride, tokens, dim, weights.data(), stride, rows, actual.data());
      ExpectNear(actual, expected, 1e-5f, "exact_value_sums");
      if (HasFatalFailure()) return;
    }
  }
}

TEST(AttendKernelsSelection, SetsFollowTheRowKernels) {
  const Result<const AttendKernels*> selected = SelectAttendKernels();
  ASSERT_TRUE(selected.has_value());
  EXPECT_STREQ((*selected)->name, (*SelectKernels())->name);
  EXPECT_STREQ(AvailableAttendKernels().back()->name, "scalar");
}

}  // namespace
}  // namespace qkvshare
