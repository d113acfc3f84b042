// A part of a view of a KV cache.
#pragma once

#include <cstddef>

#include "quant/kv_view.h"

namespace qkvshare {

// The rows of tokens [first, end), where they lie.
inline KvView RowsIn(const KvView& kv, size_t first, size_t end) {
  KvView rows;
  rows.tokens = end - first;
  for (const LayerRows& layer : kv.layers) {
    rows.layers.push_back({layer.shape, layer.keys + first * layer.shape.row_values(Side::kKeys),
                           layer.values + first * layer.shape.row_values(Side::kValues)});
  }
  return rows;
}

}  // namespace qkvshare
