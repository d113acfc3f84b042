#include "quant/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace qkvshare {
namespace {

// The value of a finite half by the definition of binary16.
double ByDefinition(Half h) {
  const int exponent = (h >> 10) & 31;
  const int fraction = h & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

// Nearest half by search among all of them; a tie goes to the even fraction, beyond the largest saturates.
class NearestHalf {
 public:
  NearestHalf() {
    for (Half h = 0; h < 0x7C00; ++h) values_.push_back(ByDefinition(h));
  }
  Half operator()(float x) const {
    const Half sign = std::signbit(x) ? 0x8000 : 0;
    const double magnitude = std::fabs(static_cast<double>(x));
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    if (above == values_.end()) return sign | 0x7BFF;
    auto h = static_cast<Half>(above - values_.begin());
    if (h > 0) {
      const double up = *above - magnitude;
      const double down = magnitude - values_[h - 1u];
      if (down < up || (down == up && h % 2 == 1)) --h;
    }
    return sign | h;
  }

 private:
  std::vector<double> values_;  // ascending
};

TEST(HalfTest, EveryHalfHasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<Half>(bits);
    const bool finite = (h & 0x7C00) != 0x7C00;
    ASSERT_EQ(IsFiniteHalf(h), finite) << bits;
    const float value = HalfToFloat(h);
    if (finite) {
      ASSERT_EQ(static_cast<double>(value), ByDefinition(h)) << bits;
      ASSERT_EQ(std::signbit(value), (h & 0x8000) != 0) << bits;
      ASSERT_EQ(FloatToHalf(value), h) << bits;
    } else if ((h & 0x3FF) == 0) {
      ASSERT_EQ(value, (h & 0x8000) != 0 ? -INFINITY : INFINITY);
    } else {
      ASSERT_TRUE(std::isnan(value)) << bits;
    }
  }
}

TEST(HalfTest, RoundsToNearestEven) {
  const NearestHalf nearest;
  // Between all neighbours: the middle, and the floats on both sides of it.
  for (Half h = 0; h < 0x7BFF; ++h) {
    const auto middle = static_cast<float>((ByDefinition(h) + ByDefinition(h + 1)) / 2);
    for (const float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, INFINITY)}) {
      ASSERT_EQ(FloatToHalf(x), nearest(x)) << x;
      ASSERT_EQ(FloatToHalf(-x), nearest(-x)) << -x;
    }
  }
}

TEST(HalfTest, RandomFloatsOfEveryExponent) {
  const NearestHalf nearest;
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) {
    uint32_t bits = random();
    // Every second one where binary16 has normal or subnormal numbers: exponents -26 to 16.
    if (i % 2 == 0) bits = (bits & 0x807FFFFFu) | ((101u + random() % 43u) << 23);
    const auto x = std::bit_cast<float>(bits);
    if (std::isnan(x)) continue;
    ASSERT_EQ(FloatToHalf(x), nearest(x)) << x;
  }
}

TEST(HalfTest, Saturates) {
  const float largest = std::numeric_limits<float>::max();
  for (const float x : {65504.0f, 65519.9f, 65520.0f, 1e6f, largest, INFINITY}) {
    EXPECT_EQ(FloatToHalf(x), 0x7BFF) << x;
    EXPECT_EQ(FloatToHalf(-x), 0xFBFF) << x;
  }
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(FloatToHalf(-0.0f), 0x8000);
}

}  // namespace
}  // namespace qkvshare
