// Statistics of what is right or wrong: intervals of one share, and tests of two on the same problems.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace qkvshare {

// A share and its interval of 95%.
struct Proportion {
  double value = 0, low = 0, high = 1;
};

// right of all, with the Wilson score interval, which keeps its promise for small numbers and near 0 and 1. all 0: from
// 0 to 1. Source: Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
Proportion WilsonInterval(size_t right, size_t all);

// The exact McNemar test: how likely a split of the problems on which two arms differ is that is no more even than this
// one, if each were as likely to fall to either (two-sided binomial test of 1/2). 1 where they differ on none.
// Source: McNemar (1947), exact form.
double McNemarExact(size_t wins, size_t losses);

// Each p-value as it counts among all of them, so that one below 0.05 is wrong with a probability of 5% for the whole
// table: Holm's step-down correction. Source: Holm, "A simple sequentially rejective multiple test procedure" (1979).
std::vector<double> HolmAdjusted(std::span<const double> p_values);

}  // namespace qkvshare
