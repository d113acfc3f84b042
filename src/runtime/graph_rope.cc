#include "runtime/graph_rope.h"

#include <algorithm>
#include <optional>

#include "ggml.h"
#include "runtime/graph_nodes.h"

namespace qkvshare {
namespace {

// Of a tensor's values in the order of their indices: every `dim` of them are a row, in which a RoPE turns channels
// from `first` on.
struct Turned {
  const ggml_tensor* rope;
  int64_t first;
  int64_t dim;

  int64_t end() const { return first + rope->op_params[kRopeDims]; }
};

std::optional<Turned> FindTurned(const ggml_tensor* x);

// Rows of a view: whole rows, the same part of each, or all values in their order.
std::optional<Turned> FindInView(const ggml_tensor* view) {
  const ggml_tensor* source = view;
  while (IsView(source)) source = source->src[0];
  std::optional<Turned> turned = FindTurned(source);
  if (!turned || !ggml_is_contiguous(source)) return {};
  const auto size = static_cast<int64_t>(ggml_type_size(source->type));
  const int64_t start = static_cast<int64_t>(view->view_offs - source->view_offs) / size % turned->dim;
  if (start == 0 && ggml_is_contiguous(view) && ggml_nelements(view) % turned->dim == 0) return turned;
  for (int i = 1; i < GGML_MAX_DIMS; ++i) {
    if (view->ne[i] > 1 && static_cast<int64_t>(view->nb[i]) / size % turned->dim != 0) return {};
  }
  if (static_cast<int64_t>(view->nb[0]) != size) return {};
  if (start == 0 && view->ne[0] % turned->dim == 0) return turned;
  if (start > turned->first || start + view->ne[0] < turned->end()) return {};
  return Turned{turned->rope, turned->first - start, view->ne[0]};
}

std::optional<Turned> FindInConcat(const ggml_tensor* concat) {
  if (concat->op_params[0] != 0) return {};
  const std::optional<Turned> left = FindTurned(concat->src[0]), right = FindTurned(concat->src[1]);
  if (left.has_value() == right.has_value()) return {};
  const ggml_tensor* part = concat->src[left ? 0 : 1];
  const Turned& turned = left ? *left : *right;
  if (turned.dim != part->ne[0]) return {};
  return Turned{turned.rope, turned.first + (left ? 0 : concat->src[0]->ne[0]), concat->ne[0]};
}

// What does the same to both channels of every pair, or keeps the length of a row, may come after RoPE: turning
// before it and turning after it give the same. Through all else nothing is found.
std::optional<Turned> FindTurned(const ggml_tensor* x) {
  if (IsView(x)) return FindInView(x);
  switch (x->op) {
    case GGML_OP_ROPE: return Turned{x, x->op_params[kRopeFirst], x->ne[0]};
    case GGML_OP_CONCAT: return FindInConcat(x);
    case GGML_OP_CONT:
    case GGML_OP_CPY:
    case GGML_OP_DUP: return FindTurned(x->src[0]);
    case GGML_OP_MUL_MAT: return IsGraphInput(x->src[0]) ? FindTurned(x->src[1]) : std::nullopt;  // the cache's own
    case GGML_OP_SCALE:
      if (FloatParam(x, 1) != 0) return {};  // adds it
      break;
    case GGML_OP_MUL:
      if (x->src[1]->ne[0] != 1) return {};  // by more than one number a row
      break;
    case GGML_OP_REPEAT:
      if (x->src[0]->ne[0] != x->ne[0]) return {};
      break;
    case GGML_OP_RMS_NORM: break;
    default: return {};
  }
  const std::optional<Turned> turned = FindTurned(x->src[0]);
  return turned && x->ne[0] % turned->dim == 0 ? turned : std::nullopt;
}

Status Unsupported(const char* what) { return {StatusCode::kUnsupported, what}; }

}  // namespace

Result<LayerRope> FindRope(const ggml_tensor* queries, const ggml_tensor* keys, const ggml_tensor* values,
                           std::span<const ggml_tensor* const> ropes) {
  for (const ggml_tensor* rope : ropes) {
    if (const Result<LayerRope> read = ReadRope(rope); !read) return read.status();
  }
  const std::optional<Turned> q = FindTurned(queries), k = FindTurned(keys);
  const auto is_found = [&](const ggml_tensor* rope) { return (q && rope == q->rope) || (k && rope == k->rope); };
  if (!std::all_of(ropes.begin(), ropes.end(), is_found))
    return Unsupported("RoPE is applied in a way that queries and keys do not show");
  if (FindTurned(values)) return Unsupported("RoPE turns values too");
  if (!q && !k) return LayerRope{};
  if (!q || !k) return Unsupported(q ? "RoPE turns queries but not keys" : "RoPE turns keys but not queries");
  QKV_ASSIGN_OR_RETURN(LayerRope of_queries, ReadRope(q->rope));
  QKV_ASSIGN_OR_RETURN(LayerRope of_keys, ReadRope(k->rope));
  of_queries.first = static_cast<uint32_t>(q->first);
  of_keys.first = static_cast<uint32_t>(k->first);
  if (of_queries != of_keys || q->dim != k->dim || q->dim != queries->ne[0] || q->rope->src[1] != k->rope->src[1])
    return Unsupported("RoPE turns queries and keys differently");
  return of_queries;
}

}  // namespace qkvshare
