#include "policy/token_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "base/parallel.h"
#include "policy/head_attention.h"
#include "quant/block.h"

namespace qkvshare {
namespace {

using HeadCosts = std::array<std::vector<float>, kWidths.size()>;  // [widths][tokens]; empty at 16 bits

// What one KV head of one layer adds.
struct HeadPart {
  HeadCosts keys, values;
  HeadAttention attention;
};

// Adds up the parts of all heads in their order, whichever is done first: the result does not depend on the threads.
class OrderedSum {
 public:
  explicit OrderedSum(MeasuredCosts* sum) : sum_(*sum) {}

  void Add(size_t index, HeadPart part) {
    const std::lock_guard lock(mutex_);
    waiting_.emplace(index, std::move(part));
    for (auto it = waiting_.begin(); it != waiting_.end() && it->first == next_; it = waiting_.erase(it), ++next_) {
      for (size_t i = 0; i < kWidths.size(); ++i) {
        AddTo(it->second.keys[i], &sum_.costs.keys[i]);
        AddTo(it->second.values[i], &sum_.costs.values[i]);
      }
      AddTo(it->second.attention.mass, &sum_.attention.mass);
      AddTo(it->second.attention.squares, &sum_.attention.squares);
      AddTo(it->second.attention.log_mass, &sum_.attention.log_mass);
    }
  }

 private:
  static void AddTo(const std::vector<float>& part, std::vector<double>* sum) {
    if (sum->empty()) sum->resize(part.size(), 0.0);
    for (size_t t = 0; t < part.size(); ++t) (*sum)[t] += static_cast<double>(part[t]);
  }

  MeasuredCosts& sum_;
  std::mutex mutex_;
  std::map<size_t, HeadPart> waiting_;
  size_t next_ = 0;
};

// Squared errors of each row at each width but 16. [widths][tokens]
Result<HeadCosts> MeasureErrors(const BlockCodec& codec, const HeadRows& rows) {
  HeadCosts errors;
  for (size_t i = 0; i < kWidths.size(); ++i) {
    if (kWidths[i] == 16) continue;
    errors[i].resize(rows.tokens);
    QKV_RETURN_IF_ERROR(codec.MeasureErrors(rows, kWidths[i], errors[i].data()));
  }
  return errors;
}

// Squared length of each row in the space of the codes, where the rotation does not count. kNonFinite as packing.
Result<std::vector<float>> CodeNorms(const HeadRows& rows, const ChannelProfile& profile, Side side) {
  std::vector<float> mean(rows.dim, 0.0f);
  std::vector<float> inverse_scale(rows.dim, 1.0f);
  for (size_t c = 0; c < profile.mean.size(); ++c) {
    mean[c] = HalfToFloat(profile.mean[c]);
    inverse_scale[c] = 1.0f / HalfToFloat(profile.scale[c]);
  }
  std::vector<float> norms(rows.tokens);
  std::vector<float> x(rows.dim);
  for (size_t t = 0; t < rows.tokens; ++t) {
    const Half* row = rows.row(t);
    for (size_t c = 0; c < rows.dim; ++c) {
      const float v = (HalfToFloat(row[c]) - mean[c]) * inverse_scale[c];
      x[c] = v * v;
    }
    norms[t] = std::accumulate(x.begin(), x.end(), 0.0f);
    if (!std::isfinite(norms[t])) {
      return Status(StatusCode::kNonFinite, fmt::format("the {} of token {} hold NaN or Inf", SideName(side), t));
    }
  }
  return norms;
}

// Squared errors of each row at each width, by those of every step-th row after the sinks, which are like no other row.
Result<HeadCosts> EstimateErrors(const BlockCodec& codec, const HeadRows& rows, const ChannelProfile& profile,
                                 Side side, size_t most_rows) {
  const size_t step = (rows.tokens + most_rows - 1) / most_rows;
  if (step == 1 || rows.tokens <= kSinkTokens) return MeasureErrors(codec, rows);
  QKV_ASSIGN_OR_RETURN(const std::vector<float> norms, CodeNorms(rows, profile, side));
  const size_t measured = (rows.tokens - kSinkTokens + step - 1) / step;
  QKV_ASSIGN_OR_RETURN(HeadCosts errors,
                       MeasureErrors(codec, {rows.row(kSinkTokens), rows.stride * step, measured, rows.dim}));
  for (std::vector<float>& error : errors) {
    if (error.empty()) continue;
    double share = 0;
    for (size_t i = 0; i < measured; ++i) {
      const float norm = norms[kSinkTokens + i * step];
      share += norm > 0 ? static_cast<double>(error[i] / norm) : 0.0;
    }
    const auto mean_share = static_cast<float>(share / static_cast<double>(measured));
    error.resize(rows.tokens);
    for (size_t t = 0; t < rows.tokens; ++t) error[t] = mean_share * norms[t];
  }
  return errors;
}

// importance * error at each width as this layer adjusts it.
HeadCosts CostsOf(const HeadCosts& errors, const std::vector<float>& importance, int steps) {
  HeadCosts costs;
  for (size_t i = 0; i < kWidths.size(); ++i) {
    if (kWidths[i] == 16) continue;
    const auto adjusted = std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(i) + steps, 0, kWidths.size() - 1);
    const std::vector<float>& error = errors[static_cast<size_t>(adjusted)];
    if (error.empty()) continue;  // exact
    costs[i].resize(error.size());
    for (size_t t = 0; t < error.size(); ++t) costs[i][t] = importance[t] * error[t];
  }
  return costs;
}

// The KV heads of all layers, one after the other.
class WindowMeasurement {
 public:
  WindowMeasurement(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window,
                    const CostOptions& options)
      : kv_(kv),
        profiles_(profiles),
        window_(window),
        options_(options),
        earlier_(options.earlier != nullptr ? options.earlier->tokens : 0) {
    std::map<uint32_t, size_t> after;  // layers after this one, by their window
    for (uint32_t layer = static_cast<uint32_t>(kv.layers.size()); layer-- > 0;) {
      if (after[window.layers[layer].window]++ % options.layer_step == 0) layers_.push_back(layer);
    }
    std::reverse(layers_.begin(), layers_.end());
    for (const uint32_t layer : layers_) {
      for (uint32_t head = 0; head < kv.layers[layer].shape.kv_heads; ++head) heads_.emplace_back(layer, head);
    }
  }

  Result<MeasuredCosts> Run(bool costs) const {
    MeasuredCosts measured;
    OrderedSum sum(&measured);
    QKV_RETURN_IF_ERROR(ParallelFor(heads_.size(), options_.threads, [&](size_t i) -> Status {
      const auto [layer, head] = heads_[i];
      Result<HeadPart> part = MeasureHead(layer, head, costs);
      if (!part) return {part.status().code(), fmt::format("layer {}: {}", layer, part.status().message())};
      sum.Add(i, std::move(*part));
      return {};
    }));
    for (auto* sides : {&measured.costs.keys, &measured.costs.values}) {
      for (std::vector<double>& width : *sides) width.resize(kv_.tokens, 0.0);  // what no layer added to
    }
    CountQueries(&measured.attention);
    return measured;
  }

 private:
  Result<HeadPart> MeasureHead(size_t layer, uint32_t head, bool costs) const {
    const LayerShape& shape = kv_.layers[layer].shape;
    QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
    const ChannelProfile none;
    const ChannelProfile& profile = profiles_.empty() ? none : profiles_[layer][head];
    const ErrorMetric* metric =
        options_.metrics != nullptr && !options_.metrics->empty() ? &(*options_.metrics)[layer][head] : nullptr;
    const BlockCodec key_codec(*kernels, Side::kKeys, shape.key_dim, profile, metric);
    const BlockCodec value_codec(*kernels, Side::kValues, shape.value_dim, none);
    HeadPart part;
    HeadCosts key_errors;
    HeadCosts value_errors;
    std::optional<HeadMatrix> values;
    if (costs) {  // first: they find what is not finite
      QKV_ASSIGN_OR_RETURN(key_errors, EstimateErrors(key_codec, kv_.head(layer, Side::kKeys, head), profile,
                                                      Side::kKeys, options_.measured_rows));
      QKV_ASSIGN_OR_RETURN(value_errors, EstimateErrors(value_codec, kv_.head(layer, Side::kValues, head), none,
                                                        Side::kValues, options_.measured_rows));
      QKV_ASSIGN_OR_RETURN(values, RowsOf(layer, Side::kValues, head));
    }
    QKV_ASSIGN_OR_RETURN(const HeadMatrix keys, RowsOf(layer, Side::kKeys, head));
    const LayerQueries& queries = window_.layers[layer];
    const std::vector<TokenRange> visible = Visible(queries);
    const size_t group = queries.heads / shape.kv_heads;
    part.attention = MeasureHeadAttention(keys, values ? &*values : nullptr, {&queries, visible, head * group, group},
                                          key_codec, {options_.attention, options_.spread, earlier_});
    if (!costs) return part;
    const LayerAdjustment adjustment = options_.layers.empty() ? LayerAdjustment() : options_.layers[layer];
    part.keys = CostsOf(key_errors, part.attention.keys, adjustment.keys);
    part.values = CostsOf(value_errors, part.attention.values, adjustment.values);
    return part;
  }

  // All that queries see of a head: earlier rows, then those of kv.
  Result<HeadMatrix> RowsOf(size_t layer, Side side, uint32_t head) const {
    const HeadRows own = kv_.head(layer, side, head);
    if (earlier_ == 0) return HeadMatrix(own);
    std::vector<Half> rows(earlier_ * own.dim);
    QKV_RETURN_IF_ERROR(options_.earlier->fill(layer, side, head, rows.data()));
    return HeadMatrix(own, {rows.data(), own.dim, earlier_, own.dim});
  }

  // To each query, counted from the first earlier token.
  std::vector<TokenRange> Visible(const LayerQueries& layer) const {
    std::vector<TokenRange> visible;
    for (const uint32_t last : window_.last_visible)
      visible.push_back(VisibleTokens(earlier_ + last, layer.window, earlier_ + window_.end));
    return visible;
  }

  void CountQueries(AttentionStats* attention) const {
    std::vector<double> change(earlier_ + kv_.tokens + 1, 0.0);  // from one token to the next
    for (const uint32_t layer : layers_) {
      const LayerQueries& queries = window_.layers[layer];
      for (const TokenRange& visible : Visible(queries)) {
        change[visible.first] += queries.heads;
        change[visible.end] -= queries.heads;
        attention->rows += visible.size() > 0 ? queries.heads : 0;
      }
    }
    attention->seen_by.resize(earlier_ + kv_.tokens);
    std::partial_sum(change.begin(), change.end() - 1, attention->seen_by.begin());
  }

  const KvView& kv_;
  const KeyProfiles& profiles_;
  const AttentionWindow& window_;
  const CostOptions& options_;
  const size_t earlier_;                              // tokens
  std::vector<uint32_t> layers_;                      // that are measured
  std::vector<std::pair<uint32_t, uint32_t>> heads_;  // layer, KV head
};

}  // namespace

AttentionStats AttentionStats::From(size_t first) const {
  const auto from = [first](const std::vector<double>& all) {
    return std::vector<double>(all.begin() + static_cast<ptrdiff_t>(std::min(first, all.size())), all.end());
  };
  return {from(mass), from(squares), from(log_mass), from(seen_by), rows};
}

Result<MeasuredCosts> MeasureTokenCosts(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window,
                                        const CostOptions& options) {
  QKV_RETURN_IF_ERROR(CheckWindow(kv, window));
  if (!options.layers.empty() && options.layers.size() != kv.layers.size()) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{} layer adjustments, but the cache has {} layers",
                                                            options.layers.size(), kv.layers.size()));
  }
  return WindowMeasurement(kv, profiles, window, options).Run(/*costs=*/true);
}

Result<AttentionStats> MeasureAttention(const KvView& kv, const AttentionWindow& window, int threads,
                                        const EarlierRows* earlier, size_t layer_step) {
  QKV_RETURN_IF_ERROR(CheckWindow(kv, window));
  CostOptions options;
  options.threads = threads;
  options.earlier = earlier;
  options.layer_step = layer_step;
  const KeyProfiles none;
  QKV_ASSIGN_OR_RETURN(MeasuredCosts measured, WindowMeasurement(kv, none, window, options).Run(/*costs=*/false));
  return std::move(measured.attention);
}

TokenCosts EqualTokenCosts(size_t tokens) {
  TokenCosts costs;
  for (size_t i = 0; i < kWidths.size(); ++i) {
    // A uniform quantizer's squared error falls by four with each bit; keys lose more than values (design, measured).
    const double error = kWidths[i] == 16 ? 0.0 : std::pow(4.0, -kWidths[i]);
    costs.keys[i].assign(tokens, 8.0 * error);
    costs.values[i].assign(tokens, error);
  }
  return costs;
}

TokenCosts MixTokenCosts(const TokenCosts& first, const TokenCosts& second, double share) {
  const auto factor = [](const TokenCosts& costs, double part) {
    double sum = 0;
    for (const auto* narrowest : {&costs.keys[0], &costs.values[0]}) {
      sum = std::accumulate(narrowest->begin(), narrowest->end(), sum);
    }
    return sum > 0 ? part / sum : 0.0;
  };
  const double a = factor(first, share);
  const double b = factor(second, 1 - share);
  TokenCosts mixed = first;
  for (size_t i = 0; i < kWidths.size(); ++i) {
    for (size_t t = 0; t < first.tokens(); ++t) {
      mixed.keys[i][t] = a * first.keys[i][t] + b * second.keys[i][t];
      mixed.values[i][t] = a * first.values[i][t] + b * second.values[i][t];
    }
  }
  return mixed;
}

void ScaleTokenCosts(std::span<const double> multiplier, TokenCosts* costs) {
  for (auto* sides : {&costs->keys, &costs->values}) {
    for (std::vector<double>& width : *sides) {
      for (size_t t = 0; t < width.size(); ++t) width[t] *= multiplier[t];
    }
  }
}

}  // namespace qkvshare
