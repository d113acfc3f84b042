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

}  // namespace

Result<ScoreError> WorstScoreError(const KvView& rows, const AttentionWindow& window, const Card& card, int threads) {
  if (window.empty()) return ScoreError();
  QKV_RETURN_IF_ERROR(CheckWindow(rows, window));
  bool same = card.layers() == rows.layers.size() && card.tokens() == rows.tokens;
  for (size_t layer = 0; same && layer < card.layers(); ++layer) same = card.shape(layer) == rows.layers[layer].shape;
  if (!same) return Status(StatusCode::kInvalidArgument, "the card is not one of these rows");
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  const AttentionWindow recent = RecentQueries(window, UINT32_MAX, kScoredQueries);
  const size_t step = (rows.tokens + kScoredTokens - 1) / kScoredTokens;
  std::vector<ScoreError> worst(card.layers());
  QKV_RETURN_IF_ERROR(ParallelFor(card.layers(), threads, [&](size_t layer) -> Status {
    const LayerShape& shape = card.shape(layer);
    const size_t group = recent.layers[layer].heads / shape.kv_heads;
    std::vector<Half> packed(rows.tokens * shape.key_dim);
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {
      QKV_RETURN_IF_ERROR(
          card.UnpackHead(*kernels, layer, Side::kKeys, head, rows.tokens, packed.data(), shape.key_dim));
      const KeyErrors errors = ErrorsOf(rows.head(layer, Side::kKeys, head), packed, step);
      const double rms = std::sqrt(MeanSquare(errors, recent.layers[layer], head * group, group));
      if (rms > worst[layer].rms) worst[layer] = {rms, layer, head};
    }
    return {};
  }));
  return *std::max_element(worst.begin(), worst.end(),
                           [](const ScoreError& a, const ScoreError& b) { return a.rms < b.rms; });
}

Result<ScoreError> WorstScoreError(const PackSource& source, const Card& card) {
  if (source.window == nullptr || source.window->empty()) return ScoreError();
  const size_t first = source.context.end(source.sequence);
  QKV_ASSIGN_OR_RETURN(const KvState rows, source.context.TakeKv(source.sequence, first, first + source.tokens.size()));
  return WorstScoreError(rows.view(), *source.window, card, source.context.threads());
}

}  // namespace qkvshare
