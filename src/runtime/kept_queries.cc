#include "runtime/kept_queries.h"

#include <algorithm>

namespace qkvshare {

void AppendQueries(const std::vector<LayerQueries>& call, size_t row, uint32_t last_visible, AttentionWindow* window) {
  if (window->layers.empty()) {
    window->layers = call;
    for (LayerQueries& layer : window->layers) layer.q.clear();
  }
  window->last_visible.push_back(last_visible);
  for (size_t i = 0; i < std::min(call.size(), window->layers.size()); ++i) {
    const size_t values = size_t{call[i].heads} * call[i].dim;
    const auto first = call[i].q.begin() + static_cast<ptrdiff_t>(row * values);
    window->layers[i].q.insert(window->layers[i].q.end(), first, first + static_cast<ptrdiff_t>(values));
  }
}

void DropQueries(uint32_t first_visible, AttentionWindow* window) {
  const auto kept = std::lower_bound(window->last_visible.begin(), window->last_visible.end(), first_visible);
  const auto dropped = static_cast<size_t>(kept - window->last_visible.begin());
  if (dropped == 0) return;
  window->last_visible.erase(window->last_visible.begin(), kept);
  for (LayerQueries& layer : window->layers) {
    layer.q.erase(layer.q.begin(), layer.q.begin() + static_cast<ptrdiff_t>(dropped * layer.heads * layer.dim));
  }
}

}  // namespace qkvshare
