// What several readers of llama.cpp's graph want of its nodes. For sources of this module only: it sees ggml.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "ggml.h"
#include "quant/tile.h"

namespace qkvshare {

// Places of GGML_OP_ROPE's parameters (ggml.c, ggml_rope_impl).
enum RopeParam {
  kRopeDims = 1,
  kRopeMode = 2,
  kRopeOriginalContext = 4,
  kRopeBase = 5,
  kRopeScale = 6,
  kRopeExtFactor = 7,
  kRopeAttnFactor = 8,
  kRopeBetaFast = 9,
  kRopeBetaSlow = 10,
  kRopeFirst = 15,
};

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

// Whether the tensor that a product multiplies by is no weight of the model but an input of the graph.
inline bool IsGraphInput(const ggml_tensor* matrix) {
  return (matrix->flags & GGML_TENSOR_FLAG_INPUT) != 0 ||
         std::string_view(matrix->name).find("attn_inp_") != std::string_view::npos;  // a copy of one
}

// Whether node is its source with other strides, nothing more.
inline bool IsView(const ggml_tensor* node) {
  return node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_PERMUTE ||
         node->op == GGML_OP_TRANSPOSE;
}

}  // namespace qkvshare
