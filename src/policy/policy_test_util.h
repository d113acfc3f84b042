// Synthetic caches and attention windows for the tests of this module.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "policy/attention_window.h"
#include "policy/earlier_rows.h"
#include "quant/kv_view.h"

namespace qkvshare {

// Owns the rows of a cache.
struct TestCache {
  size_t tokens = 0;
  std::vector<LayerShape> shapes;
  std::vector<std::vector<Half>> keys, values;  // [layers][tokens * kv_heads * dim]

  TestCache(size_t token_count, std::vector<LayerShape> layer_shapes)
      : tokens(token_count), shapes(std::move(layer_shapes)) {
    for (const LayerShape& shape : shapes) {
      keys.emplace_back(tokens * shape.row_values(Side::kKeys));
      values.emplace_back(tokens * shape.row_values(Side::kValues));
    }
  }
  // Every value from a normal distribution.
  void Fill(std::mt19937* random, float key_sigma = 1.0f, float value_sigma = 1.0f) {
    std::normal_distribution<float> normal(0, 1);
    for (auto& layer : keys)
      std::generate(layer.begin(), layer.end(), [&] { return FloatToHalf(key_sigma * normal(*random)); });
    for (auto& layer : values)
      std::generate(layer.begin(), layer.end(), [&] { return FloatToHalf(value_sigma * normal(*random)); });
  }
  // [dim] of one token and KV head.
  Half* row(size_t layer, Side side, size_t token, size_t kv_head) {
    auto& rows = side == Side::kKeys ? keys[layer] : values[layer];
    return &rows[token * shapes[layer].row_values(side) + kv_head * shapes[layer].dim(side)];
  }
  KvView view() const {
    KvView kv;
    kv.tokens = tokens;
    for (size_t i = 0; i < shapes.size(); ++i) kv.layers.push_back({shapes[i], keys[i].data(), values[i].data()});
    return kv;
  }
  // The tokens from `first` on, as what is packed, and those before, as what is earlier. Both refer to this.
  KvView view_from(size_t first) const {
    KvView kv = view();
    kv.tokens -= first;
    for (LayerRows& layer : kv.layers) {
      layer.keys += first * layer.shape.row_values(Side::kKeys);
      layer.values += first * layer.shape.row_values(Side::kValues);
    }
    return kv;
  }
  EarlierRows earlier(size_t count) const {
    const auto fill = [this, count](size_t layer, Side side, uint32_t kv_head, Half* out) {
      const HeadRows rows = view().head(layer, side, kv_head);
      for (size_t t = 0; t < count; ++t) out = std::copy_n(rows.row(t), rows.dim, out);
      return Status();
    };
    return {count, fill};
  }
};

// Normal queries, `group` query heads a KV head; query i sees up to token tokens - queries + i.
inline AttentionWindow RandomWindow(std::mt19937* random, const TestCache& cache, size_t queries, uint32_t group,
                                    float softcap = 0) {
  std::normal_distribution<float> normal(0, 1);
  AttentionWindow window;
  for (size_t i = 0; i < queries; ++i) window.last_visible.push_back(static_cast<uint32_t>(cache.tokens - queries + i));
  for (const LayerShape& shape : cache.shapes) {
    LayerQueries& layer = window.layers.emplace_back();
    layer.heads = shape.kv_heads * group;
    layer.dim = shape.key_dim;
    layer.scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
    layer.softcap = softcap;
    layer.q.resize(queries * layer.heads * layer.dim);
    std::generate(layer.q.begin(), layer.q.end(), [&] { return normal(*random); });
  }
  return window;
}

}  // namespace qkvshare
