// One KV head under the queries of a window: what its tokens' errors would cost, and the attention that they get.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/attention_window.h"
#include "policy/head_matrix.h"
#include "quant/block.h"
#include "quant/kv_view.h"

namespace qkvshare {

struct HeadAttention {
  // Cost of a unit of squared error of the token's key (value), in the space of the codes; none without values. Tokens
  // from `first` on.
  std::vector<float> keys, values;
  // Sums over the queries of the weight w, w^2 and w log w; the last two only where asked for. [tokens]
  std::vector<float> mass, squares, log_mass;
};

struct HeadQueries {
  const LayerQueries* layer = nullptr;
  std::span<const TokenRange> visible;  // to each query of the window, in this layer
  size_t first_head = 0, heads = 0;     // of the layer's query heads, those of this KV head
};

struct HeadAttentionOptions {
  bool attention = true;
  bool spread = false;
  size_t first = 0;  // tokens before it have no costs
};

// Those up to `last` and before `end`; with a sliding window, of its last `window` ones. May be empty.
TokenRange VisibleTokens(size_t last, uint32_t window, size_t end);

// values: null where no costs are wanted. codec: of the keys; only for costs.
HeadAttention MeasureHeadAttention(const HeadMatrix& keys, const HeadMatrix* values, const HeadQueries& queries,
                                   const BlockCodec& codec, const HeadAttentionOptions& options);

}  // namespace qkvshare
