#include "runtime/fused_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "ggml-backend.h"
#include "ggml.h"
#include "runtime/graph_nodes.h"

namespace qkvshare {
namespace {

static_assert(GGML_MAX_OP_PARAMS == 16 * sizeof(int32_t));

// Source of the attention node that holds the sinks, where there are any (ggml_flash_attn_ext_add_sinks).
constexpr int kSinksSource = 4;

// Memory of the CPU: a device's memory may look like it, but belongs to a buffer type with that device.
bool IsOnCpu(const ggml_tensor* tensor) {
  ggml_backend_buffer_t buffer = tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
  if (buffer == nullptr || !ggml_backend_buffer_is_host(buffer)) return false;
  ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
  return device == nullptr || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

template <typename T>
const T* DataOf(const ggml_tensor* tensor) {
  return static_cast<const T*>(tensor->data);
}

OwnRows RowsOf(const ggml_tensor* cache) {
  return {DataOf<Half>(cache), cache->nb[1] / sizeof(Half), cache->nb[2] / sizeof(Half)};
}

}  // namespace

FusedAttention::FusedAttention(const Kernels& kernels, const AttendKernels& attend) : workspace_(kernels, attend) {
  ggml_context* context = ggml_init({ggml_tensor_overhead() * 4, nullptr, /*no_alloc=*/true});
  ggml_tensor* source = ggml_new_tensor_1d(context, GGML_TYPE_F32, 8);
  const ggml_tensor* custom =
      ggml_custom_4d(context, GGML_TYPE_F32, 8, 1, 1, 1, &source, 1, Compute, GGML_N_TASKS_MAX, this);
  std::memcpy(custom_params_.data(), custom->op_params, sizeof custom->op_params);
  ggml_free(context);
}

FusedAttention::~FusedAttention() = default;

void FusedAttention::Begin(FusedCall call) {
  call_ = std::move(call);
  active_ = true;
  problem_ = {};
  layers_seen_ = 0;
  tokens_seen_ = false;
  // Only those that are used: a receiver at another place each time would add to them without end.
  const auto unused = [&](const auto& shift) {
    return std::none_of(call_.sources.begin(), call_.sources.end(),
                        [&](const FusedCall::Source& source) { return source.card.shift() == shift.first.second; });
  };
  std::erase_if(shifts_, unused);
}

Status FusedAttention::End() {
  active_ = false;
  // Nothing of the call is kept: a card that is detached now is let go.
  for (auto& [node, ours] : nodes_) ours.run.reset();
  plans_.clear();
  const FusedCall call = std::exchange(call_, {});
  Status status = std::exchange(problem_, Status());
  if (!status.ok() || call.sources.empty()) return status;
  if (!tokens_seen_) return {StatusCode::kInternal, "llama.cpp's graph does not show which tokens it computes"};
  const size_t layers = call.sources.front().card.card->card().layers();
  if (layers_seen_ == layers) return {};
  return {StatusCode::kInternal,
          fmt::format("llama.cpp computed attention {} times for {} layers", layers_seen_, layers)};
}

void FusedAttention::TurnBack(ggml_tensor* node) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  // llama.cpp may have built another graph where this one was.
  if (node->op == GGML_OP_CUSTOM && std::memcmp(node->op_params, custom_params_.data(), sizeof custom_params_) == 0) {
    node->op = static_cast<ggml_op>(found->second.op);
    std::memcpy(node->op_params, found->second.params.data(), sizeof found->second.params);
  }
  nodes_.erase(found);
}

void FusedAttention::Replace(ggml_tensor* node, std::unique_ptr<AttentionRun> run) {
  Node ours;
  ours.op = node->op;
  std::memcpy(ours.params.data(), node->op_params, sizeof ours.params);
  ours.run = std::move(run);
  std::memcpy(node->op_params, custom_params_.data(), sizeof custom_params_);
  node->op = GGML_OP_CUSTOM;
  nodes_.insert_or_assign(node, std::move(ours));
}

void FusedAttention::TakeOver(ggml_tensor* node) {
  if (!active_ && guarded_ && node->op == GGML_OP_FLASH_ATTN_EXT) {
    stray_ = true;
    if (IsOnCpu(node)) Replace(node, nullptr);
  }
  RecordCells(node);
  if (!active_ || call_.sources.empty()) return;
  if (problem_.ok()) problem_ = CheckInputs(node);
  if (node->op != GGML_OP_FLASH_ATTN_EXT) return;
  const int layer = CacheLayer(node->src[1], Side::kKeys);
  if (problem_.ok()) problem_ = CheckNode(node, layer);
  ++layers_seen_;
  if (!IsOnCpu(node)) return;  // no other device knows the operation; the call fails in the end
  Replace(node, problem_.ok() ? MakeRun(node, layer) : nullptr);
}

// That the graph is this call's: its first nodes look up the token ids, and rotate by the positions.
Status FusedAttention::CheckInputs(const ggml_tensor* node) {
  const ggml_tensor* input = node->op == GGML_OP_GET_ROWS || node->op == GGML_OP_ROPE ? node->src[1] : nullptr;
  if (input == nullptr || input->type != GGML_TYPE_I32 || !IsOnCpu(input)) return {};
  const std::string_view name = input->name;
  const std::vector<int32_t>* expected = name == "inp_tokens" ? &call_.tokens
                                         : name == "inp_pos"  ? &call_.positions
                                                              : nullptr;
  if (expected == nullptr) return {};
  if (ggml_nelements(input) == static_cast<int64_t>(expected->size()) &&
      std::equal(expected->begin(), expected->end(), DataOf<int32_t>(input))) {
    tokens_seen_ = tokens_seen_ || expected == &call_.tokens;
    return {};
  }
  return {StatusCode::kInternal, "llama.cpp computes other tokens than those of the decode call"};
}

// Which cells the call's tokens get. It is not known of tokens of llama_decode itself, and of calls that are cut.
void FusedAttention::RecordCells(const ggml_tensor* node) {
  if (node->op != GGML_OP_SET_ROWS) return;
  const ggml_tensor* cells = node->src[1];
  const int layer = CacheLayer(node->src[2], Side::kKeys);
  if (layer < 0 || static_cast<size_t>(layer) >= layers_.size() || cells->type != GGML_TYPE_I64 || !IsOnCpu(cells))
    return;
  const auto count = static_cast<size_t>(ggml_nelements(cells));
  const bool known = active_ && count == call_.positions.size();
  std::vector<int32_t>& positions = cell_positions_[layers_[static_cast<size_t>(layer)].window];
  for (size_t i = 0; i < count; ++i) {
    const auto cell = static_cast<size_t>(DataOf<int64_t>(cells)[i]);
    if (cell >= positions.size()) positions.resize(cell + 1, -1);
    positions[cell] = known ? call_.positions[i] : -1;
  }
}

Status FusedAttention::CheckNode(const ggml_tensor* node, int layer) const {
  const auto unsupported = [layer](const char* what) {
    return Status(StatusCode::kUnsupported, fmt::format("attention of layer {} {}", layer, what));
  };
  const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3];
  const Card& card = call_.sources.front().card.card->card();
  if (layer < 0 || static_cast<size_t>(layer) >= std::min(card.layers(), layers_.size()))
    return unsupported("is not over one cache a layer");
  for (const ggml_tensor* tensor : {static_cast<const ggml_tensor*>(node), q, k, v, mask}) {
    if (tensor == nullptr || !IsOnCpu(tensor)) return unsupported("is not computed by the CPU");
  }
  if (FloatParam(node, 1) != 0) return unsupported("uses ALiBi");
  if (q->ne[3] != 1 || k->ne[3] != 1) return unsupported("runs over several streams");
  if (q->ne[1] != static_cast<int64_t>(call_.tokens.size())) return unsupported("is of other tokens than the call's");
  if (q->type != GGML_TYPE_F32 || k->type != GGML_TYPE_F16 || v->type != GGML_TYPE_F16 || mask->type != GGML_TYPE_F16)
    return unsupported("is not over an F16 cache");
  if (q->nb[0] != sizeof(float) || k->nb[0] != sizeof(Half) || v->nb[0] != sizeof(Half) || mask->nb[0] != sizeof(Half))
    return unsupported("is over scattered rows");
  if (const ggml_tensor* sinks = node->src[kSinksSource];
      sinks != nullptr && (sinks->type != GGML_TYPE_F32 || sinks->nb[0] != sizeof(float) || !IsOnCpu(sinks))) {
    return unsupported("has sinks of another kind");
  }
  const LayerShape& shape = card.shape(static_cast<size_t>(layer));
  if (k->ne[2] != shape.kv_heads || k->ne[0] != static_cast<int64_t>(shape.key_dim) ||
      v->ne[0] != static_cast<int64_t>(shape.value_dim) || q->ne[2] % k->ne[2] != 0) {
    return unsupported("has other heads than the card");
  }
  return {};
}

const AttentionPlan& FusedAttention::PlanFor(const AttentionShape& shape) {
  for (const auto& plan : plans_) {
    if (plan->shape() == shape) return *plan;
  }
  std::vector<AttentionSource> sources;
  for (const FusedCall::Source& source : call_.sources) {
    const PlacedCard& placed = source.card;
    const Card& card = placed.card->card();
    const int32_t end = placed.tokens < card.tokens() ? card.positions()[placed.tokens] : INT32_MAX;
    sources.push_back({&placed.card->attention(), placed.shift(), end, source.tokens});
  }
  for (const auto& [sequence, tokens] : call_.sequences) sources.emplace_back().tokens = tokens;
  const auto& plan = plans_.emplace_back(std::make_unique<AttentionPlan>(shape, std::move(sources)));
  workspace_.Reserve(*plan);
  return *plan;
}

// Of each source; null where it lies where it was packed.
std::vector<const RopeShift*> FusedAttention::ShiftsOf(size_t layer) {
  std::vector<const RopeShift*> shifts;
  for (const FusedCall::Source& source : call_.sources) {
    const int32_t delta = source.card.shift();
    if (delta == 0) {
      shifts.push_back(nullptr);
      continue;
    }
    const auto key = std::pair(layer, delta);
    auto shift = shifts_.find(key);
    if (shift == shifts_.end()) shift = shifts_.emplace(key, RopeShift(layers_[layer].rope, delta)).first;
    shifts.push_back(&shift->second);
  }
  return shifts;
}

std::unique_ptr<AttentionRun> FusedAttention::MakeRun(ggml_tensor* node, int layer) {
  const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3];
  AttentionShape shape;
  shape.tokens = static_cast<uint32_t>(q->ne[1]);
  shape.heads = static_cast<uint32_t>(q->ne[2]);
  shape.kv_heads = static_cast<uint32_t>(k->ne[2]);
  shape.key_dim = static_cast<uint32_t>(k->ne[0]);
  shape.value_dim = static_cast<uint32_t>(v->ne[0]);
  shape.cells = static_cast<uint32_t>(k->ne[1]);
  AttentionNode attention;
  attention.layer = static_cast<size_t>(layer);
  attention.scale = FloatParam(node, 0);
  attention.softcap = FloatParam(node, 2);
  attention.window = layers_[attention.layer].window;
  attention.rotate = [shifts = ShiftsOf(attention.layer)](size_t source, float* query) {
    shifts[source]->Apply(query);
  };
  const ggml_tensor* sinks = node->src[kSinksSource];
  attention.sinks = sinks != nullptr ? DataOf<float>(sinks) : nullptr;
  attention.positions = call_.positions.data();
  attention.q = DataOf<float>(q);
  attention.q_token_stride = q->nb[1] / sizeof(float);
  attention.q_head_stride = q->nb[2] / sizeof(float);
  attention.keys = RowsOf(k);
  attention.values = RowsOf(v);
  attention.mask = DataOf<Half>(mask);
  attention.mask_stride = mask->nb[1] / sizeof(Half);
  std::vector<int32_t>& positions = cell_positions_[attention.window];
  if (positions.size() < shape.cells) positions.resize(shape.cells, -1);
  attention.cell_order = &positions;
  attention.out = static_cast<float*>(node->data);
  return std::make_unique<AttentionRun>(PlanFor(shape), std::move(attention), &workspace_);
}

void FusedAttention::Compute(ggml_tensor* node, int thread, int /*threads*/, void* self) {
  const auto* attention = static_cast<FusedAttention*>(self);
  const Node& ours = attention->nodes_.at(node);
  if (ours.run != nullptr) return ours.run->Run(thread);
  if (thread != 0) return;
  // What comes of it must not look like logits. But NaN must not get into the cache: removed rows stay there, masked,
  // and 0 * NaN is NaN. No row comes of the last layer's attention.
  const bool last = CacheLayer(node->src[1], Side::kKeys) + 1 == static_cast<int>(attention->layers_.size());
  std::fill_n(static_cast<float*>(node->data), ggml_nelements(node),
              last ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
}

}  // namespace qkvshare
