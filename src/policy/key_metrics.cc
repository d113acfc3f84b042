#include "policy/key_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "quant/block.h"

namespace qkvshare {
namespace {

Result<ErrorMetric> MetricOf(const LayerQueries& queries, size_t first_head, size_t heads, const BlockCodec& codec) {
  const size_t dim = queries.dim;
  std::vector<float> moments(dim * dim);
  std::vector<float> query(dim);
  for (size_t row = 0; row < queries.q.size(); row += queries.heads * dim) {
    for (size_t head = first_head; head < first_head + heads; ++head) {
      std::copy_n(queries.q.begin() + static_cast<ptrdiff_t>(row + head * dim), dim, query.begin());
      codec.TransformQuery(query.data());
      AddMoments(query, moments.data());
    }
  }
  return MakeErrorMetric(moments, dim, queries.q.size() / (queries.heads * dim) * heads);
}

}  // namespace

Result<KeyMetrics> MeasureKeyMetrics(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window,
                                     int threads) {
  if (window.empty()) return KeyMetrics();
  QKV_RETURN_IF_ERROR(CheckWindow(kv, window));
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  const ChannelProfile none;
  KeyMetrics metrics(kv.layers.size());
  QKV_RETURN_IF_ERROR(ParallelFor(metrics.size(), threads, [&](size_t layer) -> Status {
    const LayerShape& shape = kv.layers[layer].shape;
    const size_t group = window.layers[layer].heads / shape.kv_heads;
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {
      const ChannelProfile& profile = profiles.empty() ? none : profiles[layer][head];
      const BlockCodec codec(*kernels, Side::kKeys, shape.key_dim, profile);
      Result<ErrorMetric> metric = MetricOf(window.layers[layer], head * group, group, codec);
      if (!metric) return {metric.status().code(), fmt::format("layer {}: {}", layer, metric.status().message())};
      metrics[layer].push_back(std::move(*metric));
    }
    return {};
  }));
  return metrics;
}

}  // namespace qkvshare
