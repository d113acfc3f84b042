#include "quant/error_metric.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace qkvshare {

void AddMoments(std::span<const float> q, float* moments) {
  for (size_t i = 0; i < q.size(); ++i) {
    float* row = moments + i * q.size();
    for (size_t j = 0; j <= i; ++j) row[j] += q[i] * q[j];
  }
}

namespace {

// Share of the metric without directions. trace: of moments.
double Shrinkage(std::span<const double> moments, size_t dim, double trace, size_t queries) {
  double squares = 0;  // trace of S S
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < i; ++j) squares += 2 * moments[i * dim + j] * moments[i * dim + j];
    squares += moments[i * dim + i] * moments[i * dim + i];
  }
  const double d = static_cast<double>(dim);
  const double n = static_cast<double>(queries);
  const double spread = squares - trace * trace / d;
  const double chance = (1 - 2 / d) * squares + trace * trace;
  return chance < (n + 1 - 2 / d) * spread ? chance / ((n + 1 - 2 / d) * spread) : 1.0;
}

}  // namespace

// S = C' D C with C unit lower triangular: Cholesky from the last channel up, so that row i of C looks at the channels
// before it.
Result<ErrorMetric> MakeErrorMetric(std::span<const float> moments, size_t dim, size_t queries) {
  std::vector<double> s(moments.begin(), moments.end());
  double trace = 0;
  for (size_t i = 0; i < dim; ++i) trace += s[i * dim + i];
  if (!std::isfinite(std::accumulate(s.begin(), s.end(), trace))) {
    return Status(StatusCode::kNonFinite, "the queries hold NaN or Inf");
  }
  const double share = trace > 0 ? std::max(Shrinkage(s, dim, trace, queries), kMetricRidge / (1 + kMetricRidge)) : 1.0;
  const double factor = trace > 0 ? (1 - share) * static_cast<double>(dim) / trace : 0.0;
  for (double& moment : s) moment *= factor;
  for (size_t i = 0; i < dim; ++i) s[i * dim + i] += share;
  ErrorMetric metric{dim, std::vector<float>(dim * dim), std::vector<float>(dim)};
  for (size_t i = dim; i-- > 0;) {
    const double* row = &s[i * dim];
    const double pivot = std::max(row[i], share / 2);  // what rounding leaves of little may be less
    metric.weight[i] = static_cast<float>(pivot);
    for (size_t j = 0; j < i; ++j) {
      const double ratio = row[j] / pivot;
      metric.feedback[i * dim + j] = static_cast<float>(ratio);
      for (size_t k = 0; k <= j; ++k) s[j * dim + k] -= ratio * row[k];
    }
  }
  return metric;
}

}  // namespace qkvshare
