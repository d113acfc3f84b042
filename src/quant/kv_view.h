// Views of a KV cache's rows, wherever they came from. Plain data; nothing here owns memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quant/half.h"
#include "quant/kernels.h"
#include "quant/tile.h"

namespace qkvshare {

// Rows of one KV head: row i starts at data + i * stride. [tokens, dim] FP16.
struct HeadRows {
  const Half* data = nullptr;
  size_t stride = 0;  // in values
  size_t tokens = 0;
  size_t dim = 0;

  const Half* row(size_t token) const { return data + token * stride; }
};

inline constexpr uint32_t kMaxKvHeads = 1024;

// Heads and sizes of one layer of a KV cache. Key and value sizes may differ.
struct LayerShape {
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;    // multiple of 8
  uint32_t value_dim = 0;  // multiple of 8

  size_t dim(Side side) const { return side == Side::kKeys ? key_dim : value_dim; }
  size_t row_values(Side side) const { return kv_heads * dim(side); }
  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

constexpr bool IsValidHeadDim(uint32_t dim) { return dim > 0 && dim % 8 == 0 && dim <= kMaxHeadDim; }

// 1 to kMaxKvHeads heads, and sizes that the kernels take.
constexpr bool IsValidShape(const LayerShape& shape) {
  return shape.kv_heads > 0 && shape.kv_heads <= kMaxKvHeads && IsValidHeadDim(shape.key_dim) &&
         IsValidHeadDim(shape.value_dim);
}

// Keys and values of one layer: [tokens, kv_heads * dim] FP16, row-major, keys with their position (RoPE) applied.
struct LayerRows {
  LayerShape shape;
  const Half* keys = nullptr;
  const Half* values = nullptr;
};

struct KvView {
  size_t tokens = 0;
  std::vector<LayerRows> layers;

  HeadRows head(size_t layer, Side side, size_t kv_head) const {
    const LayerRows& rows = layers[layer];
    const size_t dim = rows.shape.dim(side);
    return {(side == Side::kKeys ? rows.keys : rows.values) + kv_head * dim, rows.shape.row_values(side), tokens, dim};
  }
  // Bytes of the FP16 rows.
  size_t bytes() const {
    size_t values = 0;
    for (const LayerRows& rows : layers)
      values += rows.shape.row_values(Side::kKeys) + rows.shape.row_values(Side::kValues);
    return values * tokens * sizeof(Half);
  }
};

inline std::vector<LayerShape> ShapesOf(const KvView& kv) {
  std::vector<LayerShape> shapes;
  shapes.reserve(kv.layers.size());
  for (const LayerRows& rows : kv.layers) shapes.push_back(rows.shape);
  return shapes;
}

}  // namespace qkvshare
