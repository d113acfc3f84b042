// A block: the packed keys (or values) of one layer and one KV head, all tokens of the card.
//
//   full tiles of level 0, of level 1, ... | partial tile of level 0, of level 1, ... | scales | zeros to 64 bytes
//
// Tokens lie in the plan's order. Tiles are in quant/tile.h; a 16-bit tile is rows of FP16. Full tiles start on a
// 64-byte boundary because their sizes are multiples of 64. Scales: one RowScale for each token that has less than 16
// bits here, in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "qkvshare/status.h"
#include "quant/bit_plan.h"
#include "quant/channel_profile.h"
#include "quant/error_metric.h"
#include "quant/half.h"
#include "quant/kernels.h"
#include "quant/kv_view.h"
#include "quant/tile.h"

namespace qkvshare {

inline constexpr size_t kBlockAlignment = 64;

// Where everything lies in a block. Depends on the side, the head size and the plan's histogram only.
struct BlockLayout {
  struct Run {
    int bits = 0;
    size_t first = 0;  // place of the first token of this level
    size_t tokens = 0;
    size_t full_offset = 0;  // bytes from the block's start to the first full tile
    size_t tail_offset = 0;  // and to the partial tile
    size_t first_scale = 0;  // index of the first token's scale

    size_t full_tokens() const { return tokens / kTileTokens * kTileTokens; }
  };
  size_t dim = 0;
  std::vector<Run> runs;  // one a level
  size_t scales_offset = 0;
  size_t bytes = 0;  // multiple of kBlockAlignment

  // level_bits: of this side in this layer, one a level (BitPlan::SideBitsOf). level_size: tokens of each level.
  static BlockLayout Make(size_t dim, std::span<const int> level_bits, std::span<const uint32_t> level_size);
};

// The codec of one block: what turns a row into the space where it is quantized, and back.
class BlockCodec {
 public:
  // profile: of the keys; empty for values. Referenced, not copied. kernels: outlives the codec. metric: that rows of 2
  // and 4 bits are rounded in, over the space of the codes; null: an error's square. Outlives the codec.
  BlockCodec(const Kernels& kernels, Side side, size_t dim, const ChannelProfile& profile,
             const ErrorMetric* metric = nullptr);

  // out: layout.bytes. kNonFinite names the token.
  Status Pack(const HeadRows& rows, const TokenOrder& order, const BlockLayout& layout, uint8_t* out) const;

  // Writes rows of the tokens below `tokens` (all others are passed over): token i at out + i * stride, FP16.
  // kCorrupt names the token where a scale is out of range or an exact value not finite.
  Status Unpack(const uint8_t* block, const TokenOrder& order, const BlockLayout& layout, size_t tokens, Half* out,
                size_t stride) const;

  // Quantization error of each row at `bits`, in the space of the codes: squared, or its cost in the metric, where rows
  // are rounded in one. errors: [rows.tokens]. kNonFinite as Pack.
  Status MeasureErrors(const HeadRows& rows, int bits, float* errors) const;

  // Takes a query [dim] to the same space, so that dot products with keys are kept (up to a term that is the same for
  // every key).
  void TransformQuery(float* query) const;

 private:
  RowSpace Space() const;
  Status NonFinite(size_t token) const;
  bool InMetric(int bits) const { return metric_ != nullptr && bits < 8; }
  Status CheckExact(const HeadRows& rows, float* errors) const;
  Status QuantizeTile(const HeadRows& rows, const uint32_t* tokens, size_t n, int bits, uint8_t* codes,
                      RowScale* scales, float* errors) const;
  Status PackTileOf(const HeadRows& rows, const BlockLayout::Run& run, const uint32_t* tokens, size_t n, uint8_t* tile,
                    RowScale* scales) const;
  Status UnpackTileOf(const uint8_t* tile, const BlockLayout::Run& run, const uint32_t* tokens, size_t n,
                      const uint8_t* scales, size_t limit, Half* out, size_t stride) const;

  const Kernels& kernels_;
  Side side_;
  size_t dim_;
  size_t rotation_block_;
  bool has_profile_;
  const ErrorMetric* metric_;
  // Of each channel. Aligned to cache lines: vectors that cross them are slow.
  alignas(64) std::array<float, kMaxHeadDim> mean_;
  alignas(64) std::array<float, kMaxHeadDim> scale_;
  alignas(64) std::array<float, kMaxHeadDim> inverse_scale_;
};

}  // namespace qkvshare
