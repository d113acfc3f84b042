#include "attend/attention_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace qkvshare {
namespace {

bool AreFinite(const uint8_t* halves, size_t count) {
  uint16_t largest = 0;  // exponent
  for (size_t i = 0; i < count; ++i) {
    Half half = 0;
    std::memcpy(&half, halves + i * sizeof half, sizeof half);
    largest = std::max<uint16_t>(largest, half & 0x7C00u);
  }
  return largest != 0x7C00u;
}

bool AreValidScales(const uint8_t* scales, size_t count) {
  bool valid = true;
  for (size_t i = 0; i < count; ++i) {
    RowScale scale = 0;
    std::memcpy(&scale, scales + i * sizeof scale, sizeof scale);
    valid = valid && IsValidScale(scale);
  }
  return valid;
}

bool IsValidBlock(const BlockLayout& layout, const uint8_t* block) {
  return std::all_of(layout.runs.begin(), layout.runs.end(), [&](const BlockLayout::Run& run) {
    if (run.bits < 16)
      return AreValidScales(block + layout.scales_offset + run.first_scale * sizeof(RowScale), run.tokens);
    return AreFinite(block + run.full_offset, run.full_tokens() * layout.dim) &&
           AreFinite(block + run.tail_offset, (run.tokens - run.full_tokens()) * layout.dim);
  });
}

}  // namespace

std::vector<TokenBlock> MakeTokenBlocks(std::span<const uint32_t> level_size) {
  std::vector<TokenBlock> blocks;
  uint32_t place = 0;
  for (uint32_t level = 0; level < level_size.size(); ++level) {
    const uint32_t full = level_size[level] & ~static_cast<uint32_t>(kTileTokens - 1);
    for (uint32_t first = 0; first < level_size[level];) {
      const bool tail = first == full;
      const uint32_t tokens =
          tail ? level_size[level] - full : std::min(static_cast<uint32_t>(kMaxBlockTokens), full - first);
      blocks.push_back({level, place + first, first, tokens, tail});
      first += tokens;
    }
    place += level_size[level];
  }
  return blocks;
}

Status CheckRows(const PackedLayer& layer) {
  for (size_t head = 0; head < layer.kv_heads(); ++head) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const bool keys = side == Side::kKeys;
      if (IsValidBlock(keys ? layer.keys : layer.values, (keys ? layer.key_blocks : layer.value_blocks)[head]))
        continue;
      return {StatusCode::kCorrupt, fmt::format("packed {} of KV head {} are out of range", SideName(side), head)};
    }
  }
  return {};
}

}  // namespace qkvshare
