#include "eval/fidelity.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "base/parallel.h"

namespace qkvshare {
namespace {

double LogSumExp(std::span<const float> x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const float v : x) sum += std::exp(v - top);
  return top + std::log(sum);
}

void ForEach(size_t count, int threads, const std::function<void(size_t)>& work) {
  const Status status = ParallelFor(count, threads, [&](size_t i) {
    work(i);
    return Status();
  });
  assert(status.ok());  // no work can fail
  (void)status;
}

ptrdiff_t ArgMax(std::span<const float> x) { return std::max_element(x.begin(), x.end()) - x.begin(); }

}  // namespace

double KlDivergence(std::span<const float> p, std::span<const float> q) {
  const double log_zp = LogSumExp(p);
  const double log_zq = LogSumExp(q);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - log_zp;
    kl += std::exp(log_p) * (log_p - (q[i] - log_zq));
  }
  return std::max(kl, 0.0);
}

Result<LogitRows> ScoreTokens(Session* session, std::span<const int32_t> tokens, size_t piece) {
  LogitRows rows;
  rows.vocab = static_cast<size_t>(session->model().vocab_size());
  rows.values.reserve(tokens.size() * rows.vocab);
  PrefillOptions options;
  options.logits = [&](size_t, const float* logits) {
    rows.values.insert(rows.values.end(), logits, logits + rows.vocab);
  };
  const size_t step = piece > 0 ? piece : std::max<size_t>(tokens.size(), 1);
  for (size_t done = 0; done < tokens.size(); done += step) {
    QKV_RETURN_IF_ERROR(session->Prefill(tokens.subspan(done, std::min(step, tokens.size() - done)), options));
  }
  return rows;
}

ReferenceRows::ReferenceRows(LogitRows rows, size_t first, int threads)
    : rows_(std::move(rows)),
      first_(first),
      facts_(rows_.tokens() - std::min(first, rows_.tokens())),
      probabilities_(facts_.size() * rows_.vocab) {
  ForEach(facts_.size(), threads, [&](size_t i) {
    const std::span<const float> row = rows_.row(first_ + i);
    facts_[i] = {LogSumExp(row), ArgMax(row)};
    std::transform(row.begin(), row.end(), probabilities_.begin() + static_cast<ptrdiff_t>(i * rows_.vocab),
                   [&](float x) { return static_cast<float>(std::exp(x - facts_[i].log_sum)); });
  });
}

std::vector<Prediction> ReferenceRows::Compare(const LogitRows& other, std::span<const int32_t> next,
                                               int threads) const {
  std::vector<Prediction> predictions(std::min(next.size(), tokens()));
  ForEach(predictions.size(), threads, [&](size_t i) {
    const std::span<const float> p = rows_.row(first_ + i), q = other.row(first_ + i);
    const float* probability = probabilities_.data() + i * rows_.vocab;
    const double log_zp = facts_[i].log_sum, log_zq = LogSumExp(q);
    double kl = 0;
    for (size_t v = 0; v < q.size(); ++v) kl += double{probability[v]} * ((p[v] - log_zp) - (q[v] - log_zq));
    const auto token = static_cast<size_t>(next[i]);
    predictions[i] = {std::max(kl, 0.0), facts_[i].top == ArgMax(q), q[token] - log_zq, p[token] - log_zp};
  });
  return predictions;
}

void FidelityMeter::Add(const LogitRows& reference, const LogitRows& other) {
  for (size_t token = 0; token < std::min(reference.tokens(), other.tokens()); ++token) {
    kl_.push_back(KlDivergence(reference.row(token), other.row(token)));
    if (ArgMax(reference.row(token)) == ArgMax(other.row(token))) ++agreements_;
  }
}

Fidelity FidelityMeter::Result() const {
  Fidelity result;
  result.tokens = kl_.size();
  if (kl_.empty()) return result;
  std::vector<double> sorted = kl_;
  std::sort(sorted.begin(), sorted.end());
  const auto quantile = [&](double q) {
    return sorted[static_cast<size_t>(std::lround(q * static_cast<double>(sorted.size() - 1)))];
  };
  result.mean_kl = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(sorted.size());
  result.median_kl = quantile(0.5);
  result.p99_kl = quantile(0.99);
  result.max_kl = sorted.back();
  result.top1_agreement = static_cast<double>(agreements_) / static_cast<double>(kl_.size());
  return result;
}

}  // namespace qkvshare
