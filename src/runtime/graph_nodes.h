// What several readers of llama.cpp's graph want of its nodes. For sources of this module only: it sees ggml.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "ggml.h"
#include "quant/tile.h"

namespace qkvshare {

inline float FloatParam(const ggml_tensor* node, int i) {
  float x = 0;
  std::memcpy(&x, &node->op_params[i], sizeof x);
  return x;
}

// The layer whose cache this tensor is a view of: llama.cpp names them cache_k_l<layer> and cache_v_l<layer>. -1 where
// it is not one.
inline int CacheLayer(const ggml_tensor* tensor, Side side) {
  const std::string_view prefix = side == Side::kKeys ? "cache_k_l" : "cache_v_l";
  while (tensor->view_src != nullptr) tensor = tensor->view_src;
  const std::string_view name = tensor->name;
  return name.starts_with(prefix) ? std::atoi(tensor->name + prefix.size()) : -1;
}

}  // namespace qkvshare
