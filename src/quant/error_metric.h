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

// Of the mean diagonal of moments, added to it at least: directions that no query had still cost a little, since later
// queries may have them.
inline constexpr double kMetricRidge = 0.01;

// Of so many queries: moments [dim, dim], the lower triangle of S. From few queries S is mostly chance: it is mixed
// with the metric without directions, the more the fewer they are (oracle approximating shrinkage; Chen, Wiesel, Eldar
// and Hero, arXiv 0907.4698, equation 23). No queries, or all of them zero: every direction counts alike. kNonFinite
// where a moment is NaN or Inf.
Result<ErrorMetric> MakeErrorMetric(std::span<const float> moments, size_t dim, size_t queries);

}  // namespace qkvshare
