#include "policy/attention_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace qkvshare {

Status CheckWindow(const KvView& kv, const AttentionWindow& window) {
  const auto invalid = [](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, "attention window: " + what);
  };
  if (window.empty()) return invalid("it holds no queries");
  if (window.layers.size() != kv.layers.size()) {
    return invalid(fmt::format("{} layers, but the cache has {}", window.layers.size(), kv.layers.size()));
  }
  for (size_t i = 0; i < kv.layers.size(); ++i) {
    const LayerQueries& queries = window.layers[i];
    const LayerShape& shape = kv.layers[i].shape;
    if (queries.dim != shape.key_dim || queries.heads == 0 || queries.heads % shape.kv_heads != 0 ||
        queries.q.size() != window.queries() * queries.heads * queries.dim) {
      return invalid(fmt::format("queries of layer {} do not fit the cache", i));
    }
  }
  for (const uint32_t last : window.last_visible) {
    if (std::min<size_t>(last + size_t{1}, window.end) > kv.tokens)
      return invalid("a query sees tokens past the cache");
  }
  return {};
}

AttentionWindow RecentQueries(const AttentionWindow& window, uint32_t tokens, size_t queries) {
  if (window.empty()) return window;
  const uint32_t last = window.last_visible.back();
  const auto first =
      std::lower_bound(window.last_visible.begin(), window.last_visible.end(), last - std::min(last, tokens - 1));
  const auto count = static_cast<size_t>(window.last_visible.end() - first);
  AttentionWindow recent;
  recent.end = window.end;
  recent.last_visible.assign(first, window.last_visible.end());
  for (const LayerQueries& layer : window.layers) {
    LayerQueries& kept =
        recent.layers.emplace_back(LayerQueries{layer.heads, layer.dim, layer.scale, layer.softcap, layer.window, {}});
    kept.q.assign(layer.q.end() - static_cast<ptrdiff_t>(count * layer.heads * layer.dim), layer.q.end());
  }
  ThinWindow(static_cast<uint32_t>((count + queries - 1) / queries), &recent);
  return recent;
}

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
  for (LayerQueries& layer : window->layers) {
    layer.q.resize(kept * layer.heads * layer.dim);
    layer.q.shrink_to_fit();  // a session may hold it for long
  }
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
