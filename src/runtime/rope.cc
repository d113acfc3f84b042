#include "runtime/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "ggml-backend.h"
#include "ggml.h"
#include "runtime/graph_nodes.h"

namespace qkvshare {
namespace {

std::string ModeName(int32_t mode) {
  switch (mode) {
    case GGML_ROPE_TYPE_MROPE: return "MROPE";
    case GGML_ROPE_TYPE_IMROPE: return "IMROPE";
    case GGML_ROPE_TYPE_VISION: return "VISION";
    default: return fmt::format("{}", mode);
  }
}

// How much of a pair's frequency YaRN leaves as it is: ggml's rope_yarn_ramp, in float as there.
float Extrapolation(const LayerRope& rope, const std::array<float, 2>& corrections, size_t pair) {
  const float y = (static_cast<float>(pair) - corrections[0]) / std::max(0.001f, corrections[1] - corrections[0]);
  return (1 - std::min(1.0f, std::max(0.0f, y))) * rope.ext_factor;
}

void TurnHalves(float* __restrict__ a, float* __restrict__ b, const float* __restrict__ cos,
                const float* __restrict__ sin, size_t pairs) {
  for (size_t i = 0; i < pairs; ++i) {
    const float x = a[i], y = b[i];
    a[i] = x * cos[i] - y * sin[i];
    b[i] = x * sin[i] + y * cos[i];
  }
}

void TurnNeighbours(float* __restrict__ x, const float* __restrict__ cos, const float* __restrict__ sin, size_t pairs) {
  for (size_t i = 0; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = a * sin[i] + b * cos[i];
  }
}

}  // namespace

Result<LayerRope> ReadRope(const ggml_tensor* node) {
  const int32_t mode = node->op_params[kRopeMode];
  if (mode != GGML_ROPE_TYPE_NORMAL && mode != GGML_ROPE_TYPE_NEOX)
    return Status(StatusCode::kUnsupported, fmt::format("RoPE is of type {}", ModeName(mode)));
  LayerRope rope;
  rope.dims = static_cast<uint32_t>(node->op_params[kRopeDims]);
  rope.first = static_cast<uint32_t>(node->op_params[kRopeFirst]);
  rope.mode = static_cast<RopeMode>(mode);
  rope.base = FloatParam(node, kRopeBase);
  rope.scale = FloatParam(node, kRopeScale);
  rope.ext_factor = FloatParam(node, kRopeExtFactor);
  rope.attn_factor = FloatParam(node, kRopeAttnFactor);
  rope.beta_fast = FloatParam(node, kRopeBetaFast);
  rope.beta_slow = FloatParam(node, kRopeBetaSlow);
  rope.original_context = node->op_params[kRopeOriginalContext];
  if (const ggml_tensor* factors = node->src[2]; factors != nullptr) {
    rope.factors.resize(rope.dims / 2);  // ggml takes longer ones too, and reads this many
    ggml_backend_tensor_get(factors, rope.factors.data(), 0, rope.factors.size() * sizeof(float));
  }
  const std::vector<double> frequencies = RopeFrequencies(rope);
  if (!std::all_of(frequencies.begin(), frequencies.end(), [](double f) { return std::isfinite(f); }))
    return Status(StatusCode::kUnsupported, "RoPE has a frequency that is no number");
  return rope;
}

// As ggml_rope_cache_init, in double but for what it rounds to float alike at every position.
std::vector<double> RopeFrequencies(const LayerRope& rope) {
  std::array<float, 2> corrections{};
  if (rope.ext_factor != 0) {
    ggml_rope_yarn_corr_dims(static_cast<int>(rope.dims), rope.original_context, rope.base, rope.beta_fast,
                             rope.beta_slow, corrections.data());
  }
  const float step = std::pow(rope.base, -2.0f / static_cast<float>(rope.dims));
  std::vector<double> frequencies(rope.dims / 2);
  double plain = 1;
  for (size_t i = 0; i < frequencies.size(); ++i, plain *= step) {
    const float kept = rope.ext_factor != 0 ? Extrapolation(rope, corrections, i) : 0.0f;
    const double factor = rope.factors.empty() ? 1.0 : rope.factors[i];
    frequencies[i] = plain / factor * (static_cast<double>(rope.scale) * (1 - kept) + kept);
  }
  return frequencies;
}

RopeShift::RopeShift(const LayerRope& rope, int32_t delta) : mode_(rope.mode), first_(rope.first) {
  if (delta == 0) return;
  for (const double frequency : RopeFrequencies(rope)) {
    const double angle = -frequency * delta;
    cos_.push_back(static_cast<float>(std::cos(angle)));
    sin_.push_back(static_cast<float>(std::sin(angle)));
  }
}

void RopeShift::Apply(float* rows, size_t count, size_t stride) const {
  const size_t pairs = cos_.size();
  for (size_t row = 0; row < count; ++row) {
    float* x = rows + row * stride + first_;
    if (mode_ == RopeMode::kNeox) {
      TurnHalves(x, x + pairs, cos_.data(), sin_.data(), pairs);
    } else {
      TurnNeighbours(x, cos_.data(), sin_.data(), pairs);
    }
  }
}

}  // namespace qkvshare
