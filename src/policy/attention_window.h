// What a policy knows of attention: queries of a window of tokens, as the model computed them. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "qkvshare/status.h"
#include "quant/kv_view.h"

namespace qkvshare {

// Queries of one layer, with their position (RoPE) applied.
struct LayerQueries {
  uint32_t heads = 0;
  uint32_t dim = 0;
  float scale = 0;       // of the scores: score = scale * q.k
  float softcap = 0;     // 0, or score = softcap * tanh(score / softcap)
  uint32_t window = 0;   // tokens that a query attends to, up to its last; 0: all
  std::vector<float> q;  // [queries, heads, dim]
};

struct AttentionWindow {
  std::vector<uint32_t> last_visible;  // [queries]: index of the last token that each query attends to
  // Tokens from here on are seen by no query: a probe's own, which are no longer there. They count in sliding windows.
  uint32_t end = UINT32_MAX;
  std::vector<LayerQueries> layers;

  size_t queries() const { return last_visible.size(); }
  bool empty() const { return last_visible.empty(); }
};

// Whether its queries fit the cache and see no token past it: kInvalidArgument.
Status CheckWindow(const KvView& kv, const AttentionWindow& window);

// The queries of the last `tokens` tokens that have one, from the last back and evenly thinned to at most `queries`.
AttentionWindow RecentQueries(const AttentionWindow& window, uint32_t tokens, size_t queries);

// Keeps every stride-th query, counted from the last.
void ThinWindow(uint32_t stride, AttentionWindow* window);

// Adds the queries of another window over the same tokens, of the same layers; `window` may be empty.
void AppendWindow(const AttentionWindow& other, AttentionWindow* window);

}  // namespace qkvshare
