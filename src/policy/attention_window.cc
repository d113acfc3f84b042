#include "policy/attention_window.h"

#include <algorithm>

namespace qkvshare {

void ThinWindow(uint32_t stride, AttentionWindow* window) {
  const size_t queries = window->queries();
  if (stride <= 1 || queries == 0) return;
  const size_t first = (queries - 1) % stride;
  size_t kept = 0;
  for (size_t from = first; from < queries; from += stride, ++kept) {
    window->last_visible[kept] = window->last_visible[from];
    for (LayerQueries& layer : window->layers) {
      const size_t row = size_t{layer.heads} * layer.dim;
      std::copy_n(layer.q.begin() + static_cast<ptrdiff_t>(from * row), row,
                  layer.q.begin() + static_cast<ptrdiff_t>(kept * row));
    }
  }
  window->last_visible.resize(kept);
  for (LayerQueries& layer : window->layers) layer.q.resize(kept * layer.heads * layer.dim);
}

void AppendWindow(const AttentionWindow& other, AttentionWindow* window) {
  if (window->empty()) {
    *window = other;
    return;
  }
  window->last_visible.insert(window->last_visible.end(), other.last_visible.begin(), other.last_visible.end());
  for (size_t i = 0; i < window->layers.size(); ++i) {
    const std::vector<float>& q = other.layers[i].q;
    window->layers[i].q.insert(window->layers[i].q.end(), q.begin(), q.end());
  }
}

}  // namespace qkvshare
