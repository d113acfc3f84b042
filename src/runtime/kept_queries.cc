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

void LeaveQueries(uint32_t first, uint32_t end, AttentionWindow* window) {
  std::vector<uint32_t>& visible = window->last_visible;
  const auto from = std::lower_bound(visible.begin(), visible.end(), first) - visible.begin();
  const auto to = std::lower_bound(visible.begin() + from, visible.end(), end) - visible.begin();
  if (from == 0 && static_cast<size_t>(to) == visible.size()) return;
  for (LayerQueries& layer : window->layers) {
    const auto row = static_cast<ptrdiff_t>(size_t{layer.heads} * layer.dim);
    layer.q.erase(layer.q.begin() + to * row, layer.q.end());
    layer.q.erase(layer.q.begin(), layer.q.begin() + from * row);
  }
  visible.erase(visible.begin() + to, visible.end());
  visible.erase(visible.begin(), visible.begin() + from);
}

}  // namespace qkvshare
