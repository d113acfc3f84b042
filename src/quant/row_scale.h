// The scale of a row of codes: a bfloat16 step whose sign bit tells which values the codes stand for.
//
//   clear: mid-rise,  x = (code - (2^(bits-1) - 0.5)) * step: as many levels below zero as above, none at zero.
//   set:   mid-tread, x = (code - 2^(bits-1)) * step: a level at zero, one more below it than above.
//
// bfloat16 has the range of a float: no row that FP16 can hold, rotated, is too large or too small for it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace qkvshare {

using RowScale = uint16_t;

enum class CodeGrid : uint8_t { kMidRise, kMidTread };

// A step below 2^40, which no row of FP16 values needs and with which nothing overflows.
constexpr bool IsValidScale(RowScale scale) { return (scale & 0x7FFFu) < 0x5380u; }

constexpr float ScaleStep(RowScale scale) { return std::bit_cast<float>(static_cast<uint32_t>(scale & 0x7FFFu) << 16); }

constexpr CodeGrid ScaleGrid(RowScale scale) {
  return (scale & 0x8000u) != 0 ? CodeGrid::kMidTread : CodeGrid::kMidRise;
}

// The code that would stand for zero. bits: 2, 4 or 8.
constexpr float ZeroCode(CodeGrid grid, int bits) {
  return static_cast<float>(1 << (bits - 1)) - (grid == CodeGrid::kMidRise ? 0.5f : 0.0f);
}

// Rounds to nearest, ties to even. step: not negative, below 2^40.
constexpr RowScale MakeScale(float step, CodeGrid grid) {
  const uint32_t bits = std::bit_cast<uint32_t>(step);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<RowScale>(rounded | (grid == CodeGrid::kMidTread ? 0x8000u : 0u));
}

// Rounds up: no value below step * n is then above the scale's own step * n.
constexpr RowScale MakeScaleAtLeast(float step, CodeGrid grid) {
  const uint32_t rounded = (std::bit_cast<uint32_t>(step) + 0xFFFFu) >> 16;
  return static_cast<RowScale>(rounded | (grid == CodeGrid::kMidTread ? 0x8000u : 0u));
}

}  // namespace qkvshare
