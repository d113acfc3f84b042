// llama.cpp's sequence state, taken apart and put together. Its layout is internal to llama.cpp, so it is learned from
// a one-token state of the very context, checked field by field, and refused where it is not as expected:
//
//   magic u32, sequence i32, then one part, or two: layers without a sliding window, then those with one. A part is
//   streams u32 = 1, cells u32, {position i32, sequences u32 = 1, sequence i32} a cell,
//   transposed V u32, layers u32, {type i32, row bytes u64, rows} a layer for K, the same for V;
//   where V is transposed (no flash attention): {type i32, value bytes u32, row values u32, [row values, cells]}
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "qkvshare/status.h"
#include "quant/kv_view.h"
#include "runtime/cache_type.h"

namespace qkvshare {

// What the cache of one layer is like, apart from its shape.
struct LayerFormat {
  RowFormat keys, values;
  uint32_t window = 0;  // tokens that a token attends to, itself included; 0: all

  const RowFormat& rows(Side side) const { return side == Side::kKeys ? keys : values; }
};

struct StateLayout {
  uint32_t magic = 0;
  int32_t f16_type = 0;  // ggml's number
  std::vector<LayerShape> shapes;
  std::vector<LayerFormat> formats = {};  // of each layer; none: all F16, without a window
  bool transposed_values = false;

  LayerFormat format(size_t layer) const { return formats.empty() ? LayerFormat() : formats[layer]; }
  // Of the layers that have one; 0: none has.
  uint32_t window() const;
};

// What a one-token state must look like to be understood. kUnsupported says what differs.
Result<StateLayout> LearnStateLayout(ByteSpan one_token_state, const std::vector<LayerShape>& shapes,
                                     const std::vector<LayerFormat>& formats = {}, bool transposed_values = false);

// The one token at several positions: a state to see in what attention looks at, before it is known which layers have a
// window. kUnsupported where the bytes are no state of one token.
Result<std::vector<uint8_t>> RepeatToken(ByteSpan one_token_state, std::span<const int32_t> positions);

// One whole state of what llama.cpp saved in pieces: its rows come in the order of their cells, and of layers with a
// window it leaves out those that have left it. states: the sequence's own, then states of the part with a window
// alone, with the rows that are missing. kUnsupported where they do not have each position once in each part.
Result<std::vector<uint8_t>> CompleteState(std::vector<std::vector<uint8_t>> states, const StateLayout& layout);

// Positions of a whole state that is laid out as `layout` says; else the errors of KvState::Parse, but for values.
// Copies no rows.
Result<std::vector<int32_t>> CheckState(ByteSpan bytes, const StateLayout& layout);

// Rows of a sequence, in FP16.
class KvState {
 public:
  // kUnsupported where the bytes are not laid out as `layout` says, the cells are not in the order of their positions,
  // or a part lacks some. kNonFinite names layer and token of a value that FP16 does not hold. On up to `threads`
  // threads.
  static Result<KvState> Parse(std::vector<uint8_t> bytes, const StateLayout& layout, int threads = 1);

  const std::vector<int32_t>& positions() const { return positions_; }
  size_t tokens() const { return positions_.size(); }
  // Points into this object.
  KvView view() const;
  // As llama_state_seq_set_data takes it.
  ByteSpan bytes() const { return bytes_; }

 private:
  // Rows of one layer and side: in bytes_, or here if they were not FP16 there.
  struct Rows {
    size_t offset = 0;
    std::vector<Half> decoded;
  };
  const Half* data(const Rows& rows) const;

  std::vector<uint8_t> bytes_;
  std::vector<int32_t> positions_;
  std::vector<LayerShape> shapes_;
  std::vector<Rows> keys_, values_;
};

// Builds a state of these positions; fill writes the rows of one layer and side: [tokens, kv_heads * dim] FP16, which
// become what the cache has. Layers are filled on up to `threads` threads.
using FillRows = std::function<Status(size_t layer, Side side, Half* rows)>;
Result<std::vector<uint8_t>> BuildState(const StateLayout& layout, std::span<const int32_t> positions, int threads,
                                        const FillRows& fill);

}  // namespace qkvshare
