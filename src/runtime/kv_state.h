// llama.cpp's sequence state, taken apart and put together. Its layout is internal to llama.cpp, so it is learned from
// a one-token state of the very context, checked field by field, and refused where it is not as expected:
//
//   magic u32, sequence i32, streams u32 = 1, cells u32, {position i32, sequences u32 = 1, sequence i32} a cell,
//   transposed V u32 = 0, layers u32, {type i32 = F16, row bytes u64, rows} a layer for K, the same for V
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "qkvshare/status.h"
#include "quant/kv_view.h"

namespace qkvshare {

struct StateLayout {
  uint32_t magic = 0;
  int32_t f16_type = 0;
  std::vector<LayerShape> shapes;
};

// What a one-token state must look like to be understood. kUnsupported says what differs.
Result<StateLayout> LearnStateLayout(ByteSpan one_token_state, const std::vector<LayerShape>& shapes);

// Positions of a state that is laid out as `layout` says; else the errors of KvState::Parse. Copies no rows.
Result<std::vector<int32_t>> CheckState(ByteSpan bytes, const StateLayout& layout);

// Rows of a sequence, as llama.cpp wrote them.
class KvState {
 public:
  // kUnsupported where the bytes are not laid out as `layout` says, or the cells are not in the order of their
  // positions.
  static Result<KvState> Parse(std::vector<uint8_t> bytes, const StateLayout& layout);

  const std::vector<int32_t>& positions() const { return positions_; }
  size_t tokens() const { return positions_.size(); }
  // Points into this object.
  KvView view() const;
  // As llama_state_seq_set_data takes it.
  ByteSpan bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
  std::vector<int32_t> positions_;
  std::vector<LayerShape> shapes_;
  std::vector<size_t> key_offset_, value_offset_;
};

// Builds a state of these positions; fill writes the rows of one layer and side: [tokens, kv_heads * dim] FP16. Layers
// are filled on up to `threads` threads.
using FillRows = std::function<Status(size_t layer, Side side, Half* rows)>;
Result<std::vector<uint8_t>> BuildState(const StateLayout& layout, std::span<const int32_t> positions, int threads,
                                        const FillRows& fill);

}  // namespace qkvshare
