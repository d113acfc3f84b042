// IEEE 754 binary16, as the KV cache and the card's scales store it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace qkvshare {

using Half = uint16_t;

inline constexpr float kHalfMax = 65504.0f;

constexpr bool IsFiniteHalf(Half h) { return (h & 0x7C00u) != 0x7C00u; }

// Exact for every finite value, subnormals included; Inf and NaN stay what they are. No branches here and below: loops
// over them become vector code.
inline float HalfToFloat(Half h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7FFFu) << 13;
  // Placed 13 bits up, the exponent is off by 112: a multiplication by 2^112 mends it, for subnormals too.
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  return std::bit_cast<float>(sign | (magnitude >= 0x0F800000u ? magnitude | 0x7F800000u : finite));
}

// Rounds to nearest, ties to even; values beyond the range saturate at +-65504 (a cache row must stay finite).
// NaN is not a valid input.
inline Half FloatToHalf(float x) {
  const uint32_t sign = (std::bit_cast<uint32_t>(x) >> 16) & 0x8000u;
  const float magnitude = std::fabs(x);
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  // Adding 0.5 leaves the value in units of 2^-24, which are the half's subnormals, rounded by the addition.
  const uint32_t subnormal = std::bit_cast<uint32_t>(magnitude + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t normal = (bits + 0xFFFu + ((bits >> 13) & 1u) - 0x38000000u) >> 13;
  const uint32_t rounded = magnitude < 0x1p-14f ? subnormal : normal;
  return static_cast<Half>(sign | (magnitude >= kHalfMax ? 0x7BFFu : rounded));
}

}  // namespace qkvshare
