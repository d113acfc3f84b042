#include "eval/rank_correlation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace qkvshare {
namespace {

// Less their mean.
std::vector<double> Ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return std::pair(values[a], a) < std::pair(values[b], b); });
  std::vector<double> ranks(values.size());
  const double middle = (static_cast<double>(values.size()) - 1) / 2;
  for (size_t first = 0, end = 0; first < order.size(); first = end) {
    while (end < order.size() && values[order[end]] == values[order[first]]) ++end;
    const double rank = static_cast<double>(first + end - 1) / 2 - middle;
    for (size_t i = first; i < end; ++i) ranks[order[i]] = rank;
  }
  return ranks;
}

double Product(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

double RankCorrelation(std::span<const double> a, std::span<const double> b) {
  const std::vector<double> ranks_a = Ranks(a), ranks_b = Ranks(b);
  const double size = std::sqrt(Product(ranks_a, ranks_a) * Product(ranks_b, ranks_b));
  return size > 0 ? Product(ranks_a, ranks_b) / size : 0.0;
}

}  // namespace qkvshare
