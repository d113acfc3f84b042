#include "runtime/graph_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "runtime/graph_nodes.h"
#include "runtime/graph_rope.h"

namespace qkvshare {
namespace {

// Of GGML_OP_ROPE's parameters, those in the digest.
constexpr size_t kDigestParams = 15;

// Whether x is the orthonormal Hadamard matrix: +-1/sqrt(n) by the parity of the bits that row and column share. One of
// less than 8 values is none: the row kernels do not have it, and llama.cpp rotates by 64 or more.
bool IsHadamard(const ggml_tensor* x) {
  if (x->type != GGML_TYPE_F32 || x->ne[0] < 8 || x->ne[0] != x->ne[1] ||
      !std::has_single_bit(static_cast<uint64_t>(x->ne[0])) || ggml_nelements(x) != x->ne[0] * x->ne[1]) {
    return false;
  }
  const auto n = static_cast<size_t>(x->ne[0]);
  std::vector<float> values(n * n);
  ggml_backend_tensor_get(x, values.data(), 0, values.size() * sizeof(float));
  const float size = 1.0f / std::sqrt(static_cast<float>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    const float expected = std::popcount((i / n) & (i % n)) % 2 == 0 ? size : -size;
    if (std::fabs(values[i] - expected) > 1e-6f) return false;
  }
  return true;
}

// The matrix that x was multiplied by last, where that is no weight of the model but an input of the graph.
const ggml_tensor* RotationOf(const ggml_tensor* x) {
  while (IsView(x) || x->op == GGML_OP_CONT) x = x->src[0];
  return x->op == GGML_OP_MUL_MAT && IsGraphInput(x->src[0]) ? x->src[0] : nullptr;
}

// Whether a query sees each of the first cells: the mask's last row is 0 there, and -infinity elsewhere.
uint32_t VisibleCells(const ggml_tensor* mask) {
  const auto cells = static_cast<size_t>(std::min<int64_t>(mask->ne[0], 32));
  std::vector<uint8_t> row(mask->nb[1]);
  ggml_backend_tensor_get(mask, row.data(), static_cast<size_t>(mask->ne[1] - 1) * mask->nb[1], row.size());
  uint32_t visible = 0;
  for (size_t i = 0; i < cells; ++i) {
    uint32_t bits = 0;  // zero for 0, in F16 as in F32
    const size_t bytes = mask->nb[0];
    std::memcpy(&bits, &row[i * bytes], std::min(bytes, sizeof bits));
    visible |= static_cast<uint32_t>(bits == 0) << i;
  }
  return visible;
}

// The cache that attention reads through views, and a cast where it is of type F32.
const ggml_tensor* CacheOf(const ggml_tensor* tensor) {
  while (tensor->view_src != nullptr || tensor->src[0] != nullptr)
    tensor = tensor->view_src != nullptr ? tensor->view_src : tensor->src[0];
  return tensor;
}

}  // namespace

bool GraphProbe::Callback(ggml_tensor* tensor, bool ask, void* self) {
  auto* probe = static_cast<GraphProbe*>(self);
  if (ask) {
    if (probe->describing_) probe->Describe(tensor);
    return probe->capturing_ && tensor->op == GGML_OP_FLASH_ATTN_EXT;
  }
  probe->Capture(tensor);
  return true;
}

void GraphProbe::StartDescribing() {
  describing_ = true;
  ropes_.clear();
  last_rope_.clear();
  first_rope_ = {};
  layers_.clear();
  flash_attention_ = false;
  next_key_rotation_ = next_value_rotation_ = 0;
  next_keys_ = next_values_ = nullptr;
  next_ropes_.clear();
  rope_status_ = {};
  problem_ = {};
}

Result<GraphProbe::Description> GraphProbe::FinishDescribing() {
  describing_ = false;
  if (!problem_.ok()) return problem_;
  const auto has_values = [](const Layer& layer) { return layer.shape.value_dim > 0; };
  if (layers_.empty() || !std::all_of(layers_.begin(), layers_.end(), has_values))
    return Status(StatusCode::kUnsupported, "llama.cpp's attention for this model and device is not as expected");
  return Description{Blake2b(ropes_), first_rope_, std::move(layers_), rope_status_, flash_attention_};
}

void GraphProbe::Refuse(const char* what) {
  if (problem_.ok()) problem_ = {StatusCode::kUnsupported, std::string("attention ") + what};
}

void GraphProbe::Describe(const ggml_tensor* node) {
  switch (node->op) {
    case GGML_OP_ROPE: return DescribeRope(node);
    case GGML_OP_SET_ROWS: return DescribeStore(node);
    case GGML_OP_FLASH_ATTN_EXT: return DescribeAttention(node);
    case GGML_OP_MUL_MAT:
    case GGML_OP_SOFT_MAX: return DescribeScores(node);
    default: return;
  }
}

void GraphProbe::DescribeRope(const ggml_tensor* node) {
  next_ropes_.push_back(node);
  std::vector<uint8_t> rope;
  ByteWriter writer(&rope);
  writer.PutBytes(node->op_params, kDigestParams * sizeof(int32_t));
  if (const ggml_tensor* factors = node->src[2]; factors != nullptr) {
    const size_t at = rope.size();
    rope.resize(at + ggml_nbytes(factors));
    ggml_backend_tensor_get(factors, rope.data() + at, 0, ggml_nbytes(factors));
  }
  if (ropes_.empty()) {
    first_rope_ = {node->op_params[kRopeDims],   node->op_params[kRopeMode],       FloatParam(node, kRopeBase),
                   FloatParam(node, kRopeScale), FloatParam(node, kRopeExtFactor), FloatParam(node, kRopeAttnFactor)};
  }
  if (rope == last_rope_) return;  // queries and keys of neighbouring layers repeat it
  ropes_.insert(ropes_.end(), rope.begin(), rope.end());
  last_rope_ = std::move(rope);
}

// Rows on their way into a cache: they come before the attention of their layer.
void GraphProbe::DescribeStore(const ggml_tensor* node) {
  const bool keys = CacheLayer(node, Side::kKeys) >= 0;
  if (!keys && CacheLayer(node, Side::kValues) < 0) return;
  (keys ? next_keys_ : next_values_) = node->src[0];
  uint32_t& rotation = keys ? next_key_rotation_ : next_value_rotation_;
  rotation = 0;
  const ggml_tensor* matrix = RotationOf(node->src[0]);
  if (matrix == nullptr) return;
  if (!IsHadamard(matrix)) return Refuse("stores rows that are transformed in an unknown way");
  rotation = static_cast<uint32_t>(matrix->ne[0]);
}

void GraphProbe::DescribeAttention(const ggml_tensor* node) {
  flash_attention_ = true;
  AddLayer(node->src[0], node->src[1], static_cast<size_t>(node->src[2]->ne[0]));
  AddValues(node->src[2]);
  DescribeMask(node->src[3], FloatParam(node, 1));
}

// Without flash attention: scores = K q, softmax over the scores, output = V (transposed) times the result.
void GraphProbe::DescribeScores(const ggml_tensor* node) {
  if (node->op == GGML_OP_MUL_MAT && CacheLayer(node->src[0], Side::kKeys) >= 0) {
    AddLayer(node->src[1], node->src[0], 0);
  } else if (layers_.empty() || layers_.back().shape.value_dim > 0) {
    return;
  } else if (node->op == GGML_OP_SOFT_MAX) {
    DescribeMask(node->src[1], FloatParam(node, 1));
  } else if (CacheLayer(node->src[0], Side::kValues) >= 0) {
    layers_.back().shape.value_dim = static_cast<uint32_t>(node->src[0]->ne[1]);
    AddValues(node->src[0]);
  }
}

void GraphProbe::AddLayer(const ggml_tensor* q, const ggml_tensor* k, size_t value_dim) {
  if (CacheLayer(k, Side::kKeys) != static_cast<int>(layers_.size()))
    return Refuse("is not over one cache a layer, in order");
  if (q->ne[3] != 1) return Refuse("runs over several streams");
  const ggml_tensor* cache = CacheOf(k);
  if (cache->ne[2] != 1) return Refuse("is over a cache of several streams: make the context with kv_unified = true");
  Layer& layer = layers_.emplace_back();
  layer.key_type = cache->type;
  layer.cells = static_cast<uint32_t>(cache->ne[1]);
  layer.shape = {static_cast<uint32_t>(k->ne[2]), static_cast<uint32_t>(k->ne[0]), static_cast<uint32_t>(value_dim)};
  layer.key_rotation = next_key_rotation_;
  layer.value_rotation = next_value_rotation_;
  AddRope(q);
}

void GraphProbe::AddValues(const ggml_tensor* v) {
  if (!layers_.empty()) layers_.back().value_type = CacheOf(v)->type;
}

// What came since the last layer's attention belongs to this one.
void GraphProbe::AddRope(const ggml_tensor* q) {
  const std::vector<const ggml_tensor*> ropes = std::exchange(next_ropes_, {});
  const ggml_tensor* keys = std::exchange(next_keys_, nullptr);
  const ggml_tensor* values = std::exchange(next_values_, nullptr);
  Result<LayerRope> rope = Status(StatusCode::kUnsupported, "it does not store keys and values of its own");
  if (keys != nullptr && values != nullptr) rope = FindRope(q, keys, values, ropes);
  if (rope) {
    layers_.back().rope = std::move(*rope);
  } else if (rope_status_.ok()) {
    rope_status_ = {rope.status().code(),
                    fmt::format("layer {}: {}; cards of this model can be used only at the positions that they were "
                                "made at",
                                layers_.size() - 1, rope.status().message())};
  }
}

void GraphProbe::DescribeMask(const ggml_tensor* mask, float max_bias) {
  if (max_bias != 0) return Refuse("uses ALiBi");
  if (mask == nullptr || layers_.empty()) return Refuse("has no mask");
  layers_.back().visible_cells = VisibleCells(mask);
}

void GraphProbe::Capture(const ggml_tensor* node) {
  const ggml_tensor* q = node->src[0];  // [dim, tokens, heads] F32, usually permuted
  const int layer = CacheLayer(node->src[1], Side::kKeys);
  if (layer < 0 || q->type != GGML_TYPE_F32) return;  // the caller finds too few layers
  if (queries_.size() <= static_cast<size_t>(layer)) queries_.resize(static_cast<size_t>(layer) + 1);
  LayerQueries& out = queries_[static_cast<size_t>(layer)];
  out.dim = static_cast<uint32_t>(q->ne[0]);
  out.heads = static_cast<uint32_t>(q->ne[2]);
  out.scale = FloatParam(node, 0);
  out.softcap = FloatParam(node, 2);
  std::vector<uint8_t> bytes(ggml_nbytes(q));
  ggml_backend_tensor_get(q, bytes.data(), 0, bytes.size());
  for (int64_t token = capture_from_; token < q->ne[1]; ++token) {
    for (int64_t head = 0; head < q->ne[2]; ++head) {
      const size_t at = out.q.size();
      out.q.resize(at + out.dim);
      std::memcpy(&out.q[at],
                  bytes.data() + static_cast<size_t>(token) * q->nb[1] + static_cast<size_t>(head) * q->nb[2],
                  out.dim * sizeof(float));
    }
  }
}

std::vector<LayerQueries> GraphProbe::TakeQueries() { return std::exchange(queries_, {}); }

}  // namespace qkvshare
