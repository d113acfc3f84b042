#include "eval/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "eval/seeded_random.h"

namespace qkvshare {
namespace {

constexpr double kTail = 0.025;

double MeanOf(const ClusterSum& total) { return total.sum / total.count; }

void Add(const ClusterSum& cluster, ClusterSum* total) {
  total->sum += cluster.sum;
  total->count += cluster.count;
}

ClusterSum TotalOf(std::span<const ClusterSum> clusters) {
  ClusterSum total;
  for (const ClusterSum& cluster : clusters) Add(cluster, &total);
  return total;
}

// Between the two nearest of sorted values.
double Percentile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Interval Unknown() {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  return {kNan, kNan, kNan};
}

Interval Bootstrap::Resample(std::span<const ClusterSum> a, std::span<const ClusterSum> b,
                             const Statistic& statistic) const {
  Interval interval = Unknown();
  if (a.empty() || a.size() != b.size()) return interval;
  interval.value = statistic(MeanOf(TotalOf(a)), MeanOf(TotalOf(b)));
  if (a.size() < 2 || !std::isfinite(interval.value)) return interval;
  std::vector<double> values;
  values.reserve(resamples_);
  SeededRandom random(seed_);
  for (size_t i = 0; i < resamples_; ++i) {
    ClusterSum total_a, total_b;
    for (size_t k = 0; k < a.size(); ++k) {
      const size_t drawn = random.Below(a.size());
      Add(a[drawn], &total_a);
      Add(b[drawn], &total_b);
    }
    const double value = statistic(MeanOf(total_a), MeanOf(total_b));
    if (std::isfinite(value)) values.push_back(value);  // else none of its clusters has a value
  }
  if (values.size() < std::max<size_t>(resamples_ / 2, 2)) return interval;
  std::sort(values.begin(), values.end());
  interval.low = Percentile(values, kTail);
  interval.high = Percentile(values, 1 - kTail);
  return interval;
}

Interval Bootstrap::Mean(std::span<const ClusterSum> clusters) const {
  return Resample(clusters, clusters, [](double mean, double /*same*/) { return mean; });
}

Interval Bootstrap::Ratio(std::span<const ClusterSum> a, std::span<const ClusterSum> b) const {
  return Resample(a, b, [](double mean_a, double mean_b) { return mean_a / mean_b; });
}

Interval Bootstrap::Difference(std::span<const ClusterSum> a, std::span<const ClusterSum> b) const {
  return Resample(a, b, [](double mean_a, double mean_b) { return mean_a - mean_b; });
}

}  // namespace qkvshare
