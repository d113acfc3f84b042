// A card as attention reads it: pointers into the mapped file, and what is worked out once when it is attached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attend/attend_kernels.h"
#include "qkvshare/status.h"
#include "quant/block.h"

namespace qkvshare {

// One layer. The blocks are as quant/block.h has them, one a KV head.
struct PackedLayer {
  BlockLayout keys, values;
  std::vector<const uint8_t*> key_blocks, value_blocks;
  // Of packed keys, [kv_heads, dim]; empty: none was taken out.
  std::vector<float> mean, scale;

  size_t kv_heads() const { return key_blocks.size(); }
};

// Tokens that are attended to in one go: of one level, whole tiles but where `tail`.
struct TokenBlock {
  uint32_t level = 0;
  uint32_t place = 0;  // of the first token, in stored order
  uint32_t first = 0;  // the same, within the level
  uint32_t tokens = 0;
  bool tail = false;  // the level's partial tile
};

struct AttentionCard {
  std::vector<PackedLayer> layers;
  std::vector<int32_t> positions;  // of each place, ascending within a level
  std::vector<TokenBlock> blocks;

  size_t tokens() const { return positions.size(); }
};

// level_size: tokens of each level, in stored order.
std::vector<TokenBlock> MakeTokenBlocks(std::span<const uint32_t> level_size);

// kCorrupt where a scale is out of range or an exact value not finite: attention would give anything.
Status CheckRows(const PackedLayer& layer);

}  // namespace qkvshare
