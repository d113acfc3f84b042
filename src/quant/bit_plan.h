// A bit plan says how many bits each token's keys and values get. Plain data: policies make it, the packer obeys it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "qkvshare/status.h"

namespace qkvshare {

// Code widths in bits. 16 means the cache's own FP16 values, untouched.
inline constexpr std::array<int, 3> kWidths = {4, 8, 16};

// Widths of a token's keys and values. Keys never get fewer bits than values: they lose more by it. 16 bits is for
// both sides or for neither, since exact tokens are stored without mean, scale and rotation.
struct Level {
  uint8_t key_bits = 0;
  uint8_t value_bits = 0;

  friend bool operator==(const Level&, const Level&) = default;
};

inline constexpr Level kExactLevel = {16, 16};
// From narrow to wide; a plan uses a subset, in this order.
inline constexpr std::array<Level, 4> kLevels = {Level{4, 4}, Level{8, 4}, Level{8, 8}, kExactLevel};

bool IsValidLevel(Level level);

// "K8V4".
std::string LevelName(Level level);

struct BitPlan {
  std::string policy;                   // the policy that made it, for the card's metadata
  std::vector<Level> levels;            // distinct, at most 16
  std::vector<uint8_t> level_of_token;  // index into levels, one a token

  size_t tokens() const { return level_of_token.size(); }
  Level level(size_t token) const { return levels[level_of_token[token]]; }
};

// kInvalidArgument where the plan has another number of tokens, an unknown or repeated level, or an index past the end.
Status ValidatePlan(const BitPlan& plan, size_t tokens);

// The order in which tokens are stored: grouped by level, ascending within a level. One order for all layers and for
// keys and values.
struct TokenOrder {
  std::vector<uint32_t> token_at;    // [tokens]: token stored at each place
  std::vector<uint32_t> level_size;  // [levels]: tokens of each level; places of level i follow those of level i - 1
};
TokenOrder OrderTokens(const BitPlan& plan);

// Every token at one level, but the first `exact_tokens` exact.
BitPlan UniformPlan(size_t tokens, Level level, size_t exact_tokens);

}  // namespace qkvshare
