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

// S = C' D C with C unit lower triangular: Cholesky from the last channel up, so that row i of C looks at the channels
// before it.
Result<ErrorMetric> MakeErrorMetric(std::span<const float> moments, size_t dim, double ridge) {
  std::vector<double> s(moments.begin(), moments.end());
  double trace = 0;
  for (size_t i = 0; i < dim; ++i) trace += s[i * dim + i];
  if (!std::isfinite(std::accumulate(s.begin(), s.end(), trace))) {
    return Status(StatusCode::kNonFinite, "the queries hold NaN or Inf");
  }
  const double mean = trace > 0 ? trace / static_cast<double>(dim) : 1.0;
  for (double& moment : s) moment /= mean * (1 + ridge);
  const double least = (trace > 0 ? ridge : 1 + ridge) / (1 + ridge);
  for (size_t i = 0; i < dim; ++i) s[i * dim + i] += least;
  ErrorMetric metric{dim, std::vector<float>(dim * dim), std::vector<float>(dim)};
  for (size_t i = dim; i-- > 0;) {
    const double* row = &s[i * dim];
    const double pivot = std::max(row[i], least / 2);  // what rounding leaves of little may be less
    metric.weight[i] = static_cast<float>(pivot);
    for (size_t j = 0; j < i; ++j) {
      const double factor = row[j] / pivot;
      metric.feedback[i * dim + j] = static_cast<float>(factor);
      for (size_t k = 0; k <= j; ++k) s[j * dim + k] -= factor * row[k];
    }
  }
  return metric;
}

}  // namespace qkvshare
