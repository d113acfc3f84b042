// Every set gives the bits of the scalar one, on rows of all sizes and kinds.
#include "quant/kernels_simd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace qkvshare {
namespace {

using Row = std::vector<float>;
using HalfRow = std::vector<Half>;
using Random = std::mt19937;

// Floats are the same where their bits are: signs of zeros too.
template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

struct Profile {
  Row mean, scale, inverse_scale;

  Profile(Random* random, size_t dim) {
    std::normal_distribution<float> normal(0, 30);
    for (size_t c = 0; c < dim; ++c) {
      mean.push_back(HalfToFloat(FloatToHalf(normal(*random))));
      scale.push_back(HalfToFloat(FloatToHalf(std::exp(normal(*random) / 10))));
      inverse_scale.push_back(1.0f / scale.back());
    }
  }
  RowSpace Space(size_t dim) const {
    return {dim, RotationBlock(dim), mean.data(), scale.data(), inverse_scale.data()};
  }
};

RowSpace Plain(size_t dim) { return {dim, RotationBlock(dim), nullptr, nullptr, nullptr}; }

Row Generate(size_t dim, const std::function<float(size_t)>& value) {
  Row row(dim);
  for (size_t c = 0; c < dim; ++c) row[c] = value(c);
  return row;
}

// Rows that are hard on sums, roundings and comparisons.
std::vector<Row> NastyRows(Random* random, size_t dim) {
  std::normal_distribution<float> normal(0, 1);
  const auto gauss = [&](size_t) { return normal(*random); };
  std::vector<Row> rows;
  for (int i = 0; i < 4; ++i) rows.push_back(Generate(dim, gauss));
  const auto sign = [&] { return (*random)() % 2 == 0 ? 1.0f : -1.0f; };
  for (const float size : {0.0f, -0.0f, 1.0f, 1e-10f, 2e6f, 65504.0f, 0.99e-20f, 1e-20f, 1e-39f}) {
    rows.push_back(Generate(dim, [&](size_t) { return size; }));
    rows.push_back(Generate(dim, [&](size_t) { return size * sign(); }));                                 // ties
    rows.push_back(Generate(dim, [&](size_t c) { return c == dim - 1 ? size : -0.0f; }));                 // a spike
    rows.push_back(Generate(dim, [&](size_t c) { return c == 3 ? -size : size * 0x1p-9f * gauss(c); }));  // an outlier
    rows.push_back(Generate(dim, [&](size_t) { return size * 0.125f * static_cast<float>((*random)() % 17) - size; }));
    rows.push_back(
        Generate(dim, [&](size_t) { return size * std::ldexp(sign(), -static_cast<int>((*random)() % 30)); }));
  }
  return rows;
}

std::vector<HalfRow> NastyHalfRows(Random* random, size_t dim) {
  std::vector<HalfRow> rows;
  for (Row& x : NastyRows(random, dim)) {
    rows.emplace_back(dim);
    std::transform(x.begin(), x.end(), rows.back().begin(), FloatToHalf);
  }
  const auto add = [&](const std::function<uint32_t()>& value) {
    rows.emplace_back(dim);
    std::generate(rows.back().begin(), rows.back().end(), [&] { return static_cast<Half>(value()); });
  };
  add([&] { return (*random)() % 0x400 | ((*random)() % 2 << 15); });   // subnormals
  add([&] { return (*random)() % 0x7C00 | ((*random)() % 2 << 15); });  // all finite values
  add([&] { return 0x7BFF | ((*random)() % 2 << 15); });                // the largest
  return rows;
}

class SimdTest : public testing::TestWithParam<const Kernels*> {
 protected:
  static const Kernels& Tested() { return *GetParam(); }
  static const Kernels& Reference() { return ScalarKernels(); }

  // With a random generator of its own for each size.
  template <typename Test>
  static void ForAllDims(const Test& test) {
    for (size_t dim = 8; dim <= kMaxHeadDim; dim += 8) {
      Random random(static_cast<uint32_t>(dim));
      test(dim, &random);
      if (HasFatalFailure()) return;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(, SimdTest, testing::ValuesIn(SimdKernels()),
                         [](const auto& set) { return std::string(set.param->name); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SimdTest);  // a CPU may have none

TEST_P(SimdTest, Rotate) {
  ForAllDims([](size_t dim, Random* random) {
    for (const Row& x : NastyRows(random, dim)) {
      for (size_t block = 8; block <= RotationBlock(dim); block *= 2) {
        Row expected = x;
        Row actual = x;
        Reference().rotate(expected.data(), dim, block);
        Tested().rotate(actual.data(), dim, block);
        ASSERT_TRUE(SameBits(actual, expected)) << dim << ", " << block;
      }
    }
  });
}

TEST_P(SimdTest, TransformRow) {
  ForAllDims([](size_t dim, Random* random) {
    const Profile profile(random, dim);
    for (const HalfRow& row : NastyHalfRows(random, dim)) {
      for (const RowSpace& space : {Plain(dim), profile.Space(dim)}) {
        Row expected(dim);
        Row actual(dim);
        ASSERT_TRUE(Reference().transform_row(row.data(), space, expected.data()));
        ASSERT_TRUE(Tested().transform_row(row.data(), space, actual.data()));
        ASSERT_TRUE(SameBits(actual, expected)) << dim;
      }
    }
  });
}

TEST_P(SimdTest, TransformRowFindsWhatIsNotFinite) {
  ForAllDims([](size_t dim, Random*) {
    for (const Half bad : {Half{0x7C00}, Half{0xFC00}, Half{0x7C01}, Half{0xFFFF}}) {
      for (size_t at = 0; at < dim; ++at) {
        HalfRow row(dim, 0x7BFF);
        row[at] = bad;
        Row x(dim);
        ASSERT_FALSE(Tested().transform_row(row.data(), Plain(dim), x.data())) << dim << ", " << at;
      }
    }
  });
}

TEST_P(SimdTest, QuantizeRow) {
  ForAllDims([](size_t dim, Random* random) {
    const std::vector<Row> rows = NastyRows(random, dim);
    const size_t step = dim > 256 ? 4 : 1;  // a part of the rows is enough for sizes that no model has
    for (size_t i = dim / 8 % step; i < rows.size(); i += step) {
      const Row& x = rows[i];
      for (const int bits : {2, 4, 8}) {
        std::vector<uint8_t> expected(dim);
        std::vector<uint8_t> actual(dim + 1, 0xA5);  // one more, which must stay
        std::array<RowScale, 2> scales;
        std::array<float, 2> errors;
        errors[0] = Reference().quantize_row(x.data(), dim, bits, expected.data(), &scales[0]);
        errors[1] = Tested().quantize_row(x.data(), dim, bits, actual.data(), &scales[1]);
        expected.push_back(0xA5);
        ASSERT_EQ(actual, expected) << dim << ", " << bits << " bits";
        ASSERT_EQ(scales[1], scales[0]);
        ASSERT_EQ(std::bit_cast<uint32_t>(errors[1]), std::bit_cast<uint32_t>(errors[0]));
      }
    }
  });
}

// Any codes with any valid scale: zero, subnormal, those whose rows are limited to the range of FP16.
TEST_P(SimdTest, RestoreRow) {
  ForAllDims([](size_t dim, Random* random) {
    const Profile profile(random, dim);
    for (int repeat = 0; repeat < 40; ++repeat) {
      const int bits = 2 << repeat % 3;
      std::vector<uint8_t> codes(dim);
      for (uint8_t& code : codes) code = static_cast<uint8_t>((*random)() % (1u << bits));
      if (repeat % 4 == 0) std::fill(codes.begin(), codes.end(), codes[0]);
      auto scale = static_cast<RowScale>(repeat % 2 == 0 ? (*random)() % 0x5380 : 0x3400 + (*random)() % 0x1400);
      if (repeat >= 30) scale = std::array<RowScale, 5>{0, 1, 0x7F, 0x80, 0x537F}[static_cast<size_t>(repeat) % 5];
      if ((*random)() % 2 == 0) scale |= 0x8000;
      for (const RowSpace& space : {Plain(dim), profile.Space(dim)}) {
        HalfRow expected(dim);
        HalfRow actual(dim + 1, 0xBEEF);  // one more, which must stay
        Reference().restore_row(codes.data(), bits, scale, space, expected.data());
        Tested().restore_row(codes.data(), bits, scale, space, actual.data());
        expected.push_back(0xBEEF);
        ASSERT_EQ(actual, expected) << dim << ", " << bits << " bits, scale " << scale;
      }
    }
  });
}

}  // namespace
}  // namespace qkvshare
