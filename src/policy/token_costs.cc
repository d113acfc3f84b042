#include "policy/token_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "quant/block.h"

namespace qkvshare {
namespace {

constexpr float kUniformFloor = 0.1f;

// The tokens that a query sees.
struct Range {
  size_t first, end;
};

Range Visible(uint32_t last, uint32_t window) {
  const size_t end = size_t{last} + 1;
  return {window > 0 && end > window ? end - window : 0, end};
}

// One KV head as floats, laid out so that the inner loops run over neighbouring values.
struct HeadMatrix {
  size_t tokens, dim;
  std::vector<float> rows;     // [tokens, dim]
  std::vector<float> columns;  // [dim, tokens]

  explicit HeadMatrix(const HeadRows& head)
      : tokens(head.tokens), dim(head.dim), rows(tokens * dim), columns(tokens * dim) {
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t c = 0; c < dim; ++c) rows[t * dim + c] = columns[c * tokens + t] = HalfToFloat(head.row(t)[c]);
    }
  }
  // out[t] = x . row t, for t in range.
  void Dot(const float* x, Range range, std::vector<float>* out) const {
    std::fill(out->begin(), out->end(), 0.0f);
    for (size_t c = 0; c < dim; ++c) {
      const float* column = &columns[c * tokens];
      for (size_t t = range.first; t < range.end; ++t) (*out)[t] += x[c] * column[t];
    }
  }
  // out = sum of weight[t] * row t, for t in range.
  void WeightedSum(const std::vector<float>& weight, Range range, std::vector<float>* out) const {
    std::fill(out->begin(), out->end(), 0.0f);
    for (size_t t = range.first; t < range.end; ++t) {
      for (size_t c = 0; c < dim; ++c) (*out)[c] += weight[t] * rows[t * dim + c];
    }
  }
};

float SquaredNorm(const float* x, size_t n) {
  float sum = 0;
  for (size_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

// Softmax over the scores in range, in place.
void Softmax(Range range, std::vector<float>* scores) {
  const auto at = [&](size_t t) { return scores->begin() + static_cast<ptrdiff_t>(t); };
  const float top = *std::max_element(at(range.first), at(range.end));
  float total = 0;
  for (size_t t = range.first; t < range.end; ++t) total += (*scores)[t] = std::exp((*scores)[t] - top);
  for (size_t t = range.first; t < range.end; ++t) (*scores)[t] /= total;
}

// Importance of the tokens of one KV head: cost of a unit of squared error, in the space of the codes.
struct Importance {
  std::vector<double> keys, values;  // [tokens]
};

class HeadImportance {
 public:
  HeadImportance(const KvView& kv, size_t layer, uint32_t kv_head, const LayerQueries& queries, const BlockCodec& codec)
      : keys_(kv.head(layer, Side::kKeys, kv_head)),
        values_(kv.head(layer, Side::kValues, kv_head)),
        queries_(queries),
        codec_(codec),
        weight_(kv.tokens),
        cross_(kv.tokens),
        value_norm_(kv.tokens),
        output_(values_.dim) {
    for (size_t t = 0; t < kv.tokens; ++t) value_norm_[t] = SquaredNorm(&values_.rows[t * values_.dim], values_.dim);
  }

  // Adds the queries of heads [first_head, first_head + group).
  Importance Measure(const std::vector<uint32_t>& last_visible, size_t first_head, size_t group) {
    Importance importance{std::vector<double>(keys_.tokens), std::vector<double>(keys_.tokens)};
    double size = 0;
    for (size_t i = 0; i < last_visible.size(); ++i) {
      for (size_t head = first_head; head < first_head + group; ++head) {
        size += AddQuery(&queries_.q[(i * queries_.heads + head) * queries_.dim],
                         Visible(last_visible[i], queries_.window), &importance);
      }
    }
    // Both sums and size are over the same queries, so their number cancels. An output of zero has nothing to lose.
    const double norm = size > 0 ? 1.0 / size : 0.0;
    for (double& x : importance.keys) x *= norm;
    for (double& x : importance.values) x *= norm;
    return importance;
  }

 private:
  // Returns the squared size of the query's attention output.
  double AddQuery(const float* q, Range visible, Importance* importance) {
    keys_.Dot(q, visible, &weight_);
    for (size_t t = visible.first; t < visible.end; ++t) {
      weight_[t] *= queries_.scale;
      if (queries_.softcap > 0) weight_[t] = queries_.softcap * std::tanh(weight_[t] / queries_.softcap);
    }
    Softmax(visible, &weight_);
    values_.WeightedSum(weight_, visible, &output_);
    values_.Dot(output_.data(), visible, &cross_);
    std::vector<float> code_query(q, q + queries_.dim);
    codec_.TransformQuery(code_query.data());
    const float moved = queries_.scale * queries_.scale * SquaredNorm(code_query.data(), queries_.dim) /
                        static_cast<float>(queries_.dim);
    const float output_norm = SquaredNorm(output_.data(), output_.size());
    const float floor = kUniformFloor / static_cast<float>(visible.end - visible.first);
    for (size_t t = visible.first; t < visible.end; ++t) {
      const float weight = (1 - kUniformFloor) * weight_[t] + floor;
      const float distance = std::max(value_norm_[t] + output_norm - 2 * cross_[t], 0.0f);
      importance->keys[t] += static_cast<double>(weight * moved * distance);
      importance->values[t] += static_cast<double>(weight);
    }
    return static_cast<double>(output_norm);
  }

  HeadMatrix keys_, values_;
  const LayerQueries& queries_;
  const BlockCodec& codec_;
  std::vector<float> weight_, cross_, value_norm_, output_;
};

Status AddErrors(const BlockCodec& codec, const HeadRows& rows, const std::vector<double>& importance,
                 std::array<std::vector<double>, kWidths.size()>* costs) {
  std::vector<float> errors(rows.tokens);
  for (size_t i = 0; i < kWidths.size(); ++i) {
    if (kWidths[i] == 16) continue;
    QKV_RETURN_IF_ERROR(codec.MeasureErrors(rows, kWidths[i], errors.data()));
    for (size_t t = 0; t < rows.tokens; ++t) (*costs)[i][t] += importance[t] * static_cast<double>(errors[t]);
  }
  return {};
}

TokenCosts ZeroCosts(size_t tokens) {
  TokenCosts costs;
  for (size_t i = 0; i < kWidths.size(); ++i) {
    costs.keys[i].assign(tokens, 0.0);
    costs.values[i].assign(tokens, 0.0);
  }
  return costs;
}

Status AddLayer(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window, size_t layer,
                TokenCosts* costs) {
  const LayerShape& shape = kv.layers[layer].shape;
  const LayerQueries& queries = window.layers[layer];
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  const size_t group = queries.heads / shape.kv_heads;
  for (uint32_t head = 0; head < shape.kv_heads; ++head) {
    const ChannelProfile none;
    const BlockCodec key_codec(*kernels, Side::kKeys, shape.key_dim, profiles.empty() ? none : profiles[layer][head]);
    const BlockCodec value_codec(*kernels, Side::kValues, shape.value_dim, none);
    const Importance importance =
        HeadImportance(kv, layer, head, queries, key_codec).Measure(window.last_visible, head * group, group);
    QKV_RETURN_IF_ERROR(AddErrors(key_codec, kv.head(layer, Side::kKeys, head), importance.keys, &costs->keys));
    QKV_RETURN_IF_ERROR(AddErrors(value_codec, kv.head(layer, Side::kValues, head), importance.values, &costs->values));
  }
  return {};
}

Status CheckWindow(const KvView& kv, const AttentionWindow& window) {
  const auto invalid = [](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, "attention window: " + what);
  };
  if (window.empty()) return invalid("it holds no queries");
  if (window.layers.size() != kv.layers.size()) {
    return invalid(fmt::format("{} layers, but the cache has {}", window.layers.size(), kv.layers.size()));
  }
  for (size_t i = 0; i < kv.layers.size(); ++i) {
    const LayerQueries& queries = window.layers[i];
    const LayerShape& shape = kv.layers[i].shape;
    if (queries.dim != shape.key_dim || queries.heads == 0 || queries.heads % shape.kv_heads != 0 ||
        queries.q.size() != window.queries() * queries.heads * queries.dim) {
      return invalid(fmt::format("queries of layer {} do not fit the cache", i));
    }
  }
  for (const uint32_t last : window.last_visible) {
    if (last >= kv.tokens) return invalid("a query sees tokens past the cache");
  }
  return {};
}

}  // namespace

Result<TokenCosts> MeasureTokenCosts(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window,
                                     int threads) {
  QKV_RETURN_IF_ERROR(CheckWindow(kv, window));
  // One sum a layer, added up in order: the result does not depend on the threads.
  std::vector<TokenCosts> layers(kv.layers.size());
  QKV_RETURN_IF_ERROR(ParallelFor(kv.layers.size(), threads, [&](size_t layer) {
    layers[layer] = ZeroCosts(kv.tokens);
    const Status status = AddLayer(kv, profiles, window, layer, &layers[layer]);
    return status.ok() ? status : Status(status.code(), fmt::format("layer {}: {}", layer, status.message()));
  }));
  TokenCosts costs = ZeroCosts(kv.tokens);
  for (const TokenCosts& layer : layers) {
    for (size_t i = 0; i < kWidths.size(); ++i) {
      for (size_t t = 0; t < kv.tokens; ++t) {
        costs.keys[i][t] += layer.keys[i][t];
        costs.values[i][t] += layer.values[i][t];
      }
    }
  }
  return costs;
}

TokenCosts EqualTokenCosts(size_t tokens) {
  TokenCosts costs = ZeroCosts(tokens);
  for (size_t i = 0; i < kWidths.size(); ++i) {
    if (kWidths[i] == 16) continue;
    // A uniform quantizer's squared error falls by four with each bit; keys lose more than values (design, measured).
    const double error = std::pow(4.0, -kWidths[i]);
    costs.keys[i].assign(tokens, 8.0 * error);
    costs.values[i].assign(tokens, error);
  }
  return costs;
}

}  // namespace qkvshare
