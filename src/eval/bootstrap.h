// Intervals of means over what comes in clusters (the tokens of one prompt are no independent samples), by resampling
// the clusters. Source: Efron, Tibshirani, "An introduction to the bootstrap" (1993), chapters 8 and 13.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace qkvshare {

// Of 95%. low and high are NaN where they are not known: fewer than two clusters, or no values.
struct Interval {
  double value = 0, low = 0, high = 0;
};
// No interval, and no value.
Interval Unknown();

// What one cluster adds to a mean.
struct ClusterSum {
  double sum = 0;
  double count = 0;  // of the values in sum; 0: the cluster has none
};

// Draws as many clusters as there are, with replacement, again and again; the interval is from the 2.5th to the 97.5th
// percentile of what that gives. The same seed and number of clusters give the same draws, so that what is compared is
// paired: cluster i of one arm goes with cluster i of the other. Takes about resamples x clusters x 2 ns a call.
class Bootstrap {
 public:
  explicit Bootstrap(uint64_t seed, size_t resamples = 10'000) : seed_(seed), resamples_(resamples) {}

  // Sum of sums over sum of counts.
  Interval Mean(std::span<const ClusterSum> clusters) const;
  // Mean of a / mean of b, and a's less b's. Both of the same clusters.
  Interval Ratio(std::span<const ClusterSum> a, std::span<const ClusterSum> b) const;
  Interval Difference(std::span<const ClusterSum> a, std::span<const ClusterSum> b) const;

 private:
  using Statistic = std::function<double(double mean_a, double mean_b)>;
  Interval Resample(std::span<const ClusterSum> a, std::span<const ClusterSum> b, const Statistic& statistic) const;

  uint64_t seed_;
  size_t resamples_;
};

}  // namespace qkvshare
