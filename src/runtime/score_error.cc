#include "runtime/score_error.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/parallel.h"
#include "quant/half.h"
#include "quant/kernels.h"

namespace qkvshare {
namespace {

// Errors of the keys of one KV head: [tokens, dim], of every step-th token.
struct KeyErrors {
  size_t dim = 0;
  std::vector<double> values;

  size_t tokens() const { return values.size() / dim; }
};

KeyErrors ErrorsOf(const HeadRows& exact, const std::vector<Half>& packed, size_t step) {
  KeyErrors errors = {exact.dim, {}};
  for (size_t token = 0; token < exact.tokens; token += step) {
    for (size_t c = 0; c < exact.dim; ++c) {
      errors.values.push_back(static_cast<double>(HalfToFloat(packed[token * exact.dim + c])) -
                              static_cast<double>(HalfToFloat(exact.row(token)[c])));
    }
  }
  return errors;
}

// Mean square of scale * q.e over the queries of heads [first, first + heads).
double MeanSquare(const KeyErrors& errors, const LayerQueries& queries, size_t first, size_t heads) {
  double sum = 0;
  size_t count = 0;
  for (size_t row = 0; row < queries.q.size(); row += size_t{queries.heads} * queries.dim) {
    for (size_t head = first; head < first + heads; ++head) {
      const float* query = queries.q.data() + row + head * queries.dim;
      for (size_t t = 0; t < errors.tokens(); ++t, ++count) {
        const double score = std::inner_product(query, query + errors.dim, errors.values.data() + t * errors.dim, 0.0);
        sum += score * score;
      }
    }
  }
  return count == 0 ? 0 : sum / static_cast<double>(count) * std::pow(static_cast<double>(queries.scale), 2);
}

// Mean over its KV heads.
Status MeanSquareOfLayer(const KvView& rows, const LayerQueries& queries, const Card& card, const Kernels& kernels,
                         size_t layer, double* mean) {
  const LayerShape& shape = card.shape(layer);
  const size_t group = queries.heads / shape.kv_heads;
  const size_t step = (rows.tokens + kScoredTokens - 1) / kScoredTokens;
  std::vector<Half> packed(rows.tokens * shape.key_dim);
  for (uint32_t head = 0; head < shape.kv_heads; ++head) {
    QKV_RETURN_IF_ERROR(card.UnpackHead(kernels, layer, Side::kKeys, head, rows.tokens, packed.data(), shape.key_dim));
    const KeyErrors errors = ErrorsOf(rows.head(layer, Side::kKeys, head), packed, step);
    *mean += MeanSquare(errors, queries, head * group, group) / shape.kv_heads;
  }
  return {};
}

}  // namespace

Result<ScoreError> MeasureScoreError(const KvView& rows, const AttentionWindow& window, const Card& card, int threads) {
  if (window.empty()) return ScoreError();
  QKV_RETURN_IF_ERROR(CheckWindow(rows, window));
  bool same = card.layers() == rows.layers.size() && card.tokens() == rows.tokens;
  for (size_t layer = 0; same && layer < card.layers(); ++layer) same = card.shape(layer) == rows.layers[layer].shape;
  if (!same) return Status(StatusCode::kInvalidArgument, "the card is not one of these rows");
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  const AttentionWindow recent = RecentQueries(window, UINT32_MAX, kScoredQueries);
  std::vector<double> means(card.layers());
  QKV_RETURN_IF_ERROR(ParallelFor(means.size(), threads, [&](size_t layer) {
    return MeanSquareOfLayer(rows, recent.layers[layer], card, *kernels, layer, &means[layer]);
  }));
  const auto worst = std::max_element(means.begin(), means.end());
  const double mean = std::accumulate(means.begin(), means.end(), 0.0) / static_cast<double>(means.size());
  return ScoreError{std::sqrt(mean), static_cast<size_t>(worst - means.begin()), std::sqrt(*worst)};
}

Result<ScoreError> MeasureScoreError(const PackSource& source, const Card& card) {
  if (source.window == nullptr || source.window->empty()) return ScoreError();
  const size_t first = source.context.end(source.sequence);
  QKV_ASSIGN_OR_RETURN(const KvState rows, source.context.TakeKv(source.sequence, first, first + source.tokens.size()));
  return MeasureScoreError(rows.view(), *source.window, card, source.context.threads());
}

}  // namespace qkvshare
