#include "eval/proportions.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace qkvshare {
namespace {

constexpr double kNormal95 = 1.959963984540054;  // the 97.5th percentile of the normal distribution

}  // namespace

Proportion WilsonInterval(size_t right, size_t all) {
  if (all == 0) return {};
  const auto n = static_cast<double>(all);
  const double share = static_cast<double>(right) / n;
  const double z2 = kNormal95 * kNormal95;
  const double middle = (share + z2 / (2 * n)) / (1 + z2 / n);
  const double half = kNormal95 / (1 + z2 / n) * std::sqrt(share * (1 - share) / n + z2 / (4 * n * n));
  // At the ends it is exact but for rounding.
  return {share, right == 0 ? 0 : middle - half, right == all ? 1 : middle + half};
}

double McNemarExact(size_t wins, size_t losses) {
  const size_t all = wins + losses;
  const size_t fewer = std::min(wins, losses);
  double tail = 0;  // of `fewer` or less
  double log_choose = 0;
  for (size_t k = 0; k <= fewer; ++k) {
    if (k > 0) log_choose += std::log(static_cast<double>(all - k + 1)) - std::log(static_cast<double>(k));
    tail += std::exp(log_choose - static_cast<double>(all) * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

std::vector<double> HolmAdjusted(std::span<const double> p_values) {
  std::vector<size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return p_values[a] != p_values[b] ? p_values[a] < p_values[b] : a < b; });
  std::vector<double> adjusted(p_values.size());
  double highest = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    highest = std::max(highest, std::min(1.0, p_values[order[i]] * static_cast<double>(order.size() - i)));
    adjusted[order[i]] = highest;
  }
  return adjusted;
}

}  // namespace qkvshare
