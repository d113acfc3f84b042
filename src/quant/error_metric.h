// What an error in a row costs where the row will be used: a quadratic form in the space of the codes.
//
// A key is met by queries only, so that its error e changes scores by q.e: summed over queries, its cost is e' S e with
// S the sum of q q'. Queries of one head lie in few directions. Errors in the others cost nothing, and rounding can
// move them there (quant/kernels.h, round_tile).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "qkvshare/status.h"

namespace qkvshare {

// The cost, scaled so that an error without direction costs its squared length, factored for rounding channel by
// channel: the sum over channels i of weight[i] * (e[i] + sum over j < i of feedback[i][j] e[j])^2.
struct ErrorMetric {
  size_t dim = 0;
  std::vector<float> feedback;  // [dim, dim]; zero from the diagonal on
  std::vector<float> weight;    // [dim], positive

  bool empty() const { return dim == 0; }
};

// Of a cache: [layer][kv_head]. Empty: every direction counts alike.
using KeyMetrics = std::vector<std::vector<ErrorMetric>>;

// Adds q q' to moments, [dim, dim], whose lower triangle counts.
void AddMoments(std::span<const float> q, float* moments);

// Of the mean diagonal of moments, added to it: directions that no query had still cost a little, since later queries
// may have them. Measured: docs/codecs.md.
inline constexpr double kMetricRidge = 0.01;

// moments: [dim, dim], the lower triangle of S. All zero: every direction counts alike. kNonFinite where one is NaN or
// Inf.
Result<ErrorMetric> MakeErrorMetric(std::span<const float> moments, size_t dim, double ridge = kMetricRidge);

}  // namespace qkvshare
