// A bit plan says how many bits each token's keys and values get. Plain data: policies make it, the packer obeys it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "qkvshare/status.h"
#include "quant/tile.h"

namespace qkvshare {

// Code widths in bits. 16 means the cache's own FP16 values, untouched.
inline constexpr std::array<int, 4> kWidths = {2, 4, 8, 16};

// Widths of a token's keys and values: any pair.
struct Level {
  uint8_t key_bits = 0;
  uint8_t value_bits = 0;

  friend bool operator==(const Level&, const Level&) = default;
};

inline constexpr Level kExactLevel = {16, 16};
// The levels that policies choose from, from narrow to wide. Keys never get fewer bits than values: they lose more by
// it.
inline constexpr std::array<Level, 6> kLevels = {Level{2, 2}, Level{4, 2}, Level{4, 4},
                                                 Level{8, 4}, Level{8, 8}, kExactLevel};

// Steps by which a layer's keys and values are wider or narrower than the levels say, along kWidths.
struct LayerAdjustment {
  int8_t keys = 0;
  int8_t values = 0;

  friend bool operator==(const LayerAdjustment&, const LayerAdjustment&) = default;
};
inline constexpr int kMaxAdjustment = 3;

// Bits of one side of a level in a layer. kExactLevel is never adjusted: exact tokens are exact in every layer.
int SideBits(Level level, Side side, LayerAdjustment adjustment);

bool IsValidLevel(Level level);

// "K8V4"; "exact" for kExactLevel.
std::string LevelName(Level level);

struct BitPlan {
  std::string policy;                        // the policy that made it, for the card's metadata
  std::vector<Level> levels;                 // distinct, at most 16
  std::vector<uint8_t> level_of_token;       // index into levels, one a token
  std::vector<LayerAdjustment> layers = {};  // one a layer, or empty: none is adjusted

  size_t tokens() const { return level_of_token.size(); }
  Level level(size_t token) const { return levels[level_of_token[token]]; }
  LayerAdjustment adjustment(size_t layer) const { return layers.empty() ? LayerAdjustment() : layers[layer]; }
  // Of each level, in this layer.
  std::vector<int> SideBitsOf(size_t layer, Side side) const;
};

// kInvalidArgument where the plan has another number of tokens or layers, an unknown or repeated level, an index past
// the end, or an adjustment of more than kMaxAdjustment steps.
Status ValidatePlan(const BitPlan& plan, size_t tokens, size_t layers);

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
