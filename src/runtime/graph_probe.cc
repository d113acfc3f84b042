#include "runtime/graph_probe.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace qkvshare {
namespace {

// Places of GGML_OP_ROPE's parameters (ggml.c, ggml_rope_impl).
enum RopeParam {
  kRopeDims = 1,
  kRopeMode = 2,
  kRopeBase = 5,
  kRopeScale = 6,
  kRopeExtFactor = 7,
  kRopeAttnFactor = 8,
  kRopeParams = 15
};

float FloatParam(const ggml_tensor* node, int i) {
  float x = 0;
  std::memcpy(&x, &node->op_params[i], sizeof x);
  return x;
}

// The layer whose cache this tensor is a view of: llama.cpp names it cache_k_l<layer>. -1 where it is not one.
int CacheLayer(const ggml_tensor* tensor) {
  static constexpr std::string_view kPrefix = "cache_k_l";
  while (tensor->view_src != nullptr) tensor = tensor->view_src;
  const std::string_view name = tensor->name;
  return name.starts_with(kPrefix) ? std::atoi(tensor->name + kPrefix.size()) : -1;
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
  shapes_.clear();
  problem_ = {};
}

Result<GraphProbe::Description> GraphProbe::FinishDescribing() {
  describing_ = false;
  if (!problem_.ok()) return problem_;
  if (shapes_.empty())
    return Status(StatusCode::kUnsupported, "llama.cpp does not use flash attention for this model and device");
  return Description{Blake2b(ropes_), first_rope_, std::move(shapes_)};
}

void GraphProbe::Describe(const ggml_tensor* node) {
  if (node->op == GGML_OP_ROPE) DescribeRope(node);
  if (node->op == GGML_OP_FLASH_ATTN_EXT) DescribeAttention(node);
}

void GraphProbe::DescribeRope(const ggml_tensor* node) {
  std::vector<uint8_t> rope;
  ByteWriter writer(&rope);
  writer.PutBytes(node->op_params, kRopeParams * sizeof(int32_t));
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

void GraphProbe::DescribeAttention(const ggml_tensor* node) {
  const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2];
  const auto unsupported = [&](const char* why) {
    problem_ = {StatusCode::kUnsupported, std::string("attention ") + why};
  };
  if (const int layer = CacheLayer(k); layer != static_cast<int>(shapes_.size()))
    return unsupported("is not over one cache a layer, in order");
  if (q->ne[3] != 1) return unsupported("runs over several streams");
  if (FloatParam(node, 1) != 0) return unsupported("uses ALiBi");
  shapes_.push_back(
      {static_cast<uint32_t>(k->ne[2]), static_cast<uint32_t>(k->ne[0]), static_cast<uint32_t>(v->ne[0])});
}

void GraphProbe::Capture(const ggml_tensor* node) {
  const ggml_tensor* q = node->src[0];  // [dim, tokens, heads] F32, usually permuted
  const int layer = CacheLayer(node->src[1]);
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
