#include "policy/transferability.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace qkvshare {
namespace {

constexpr double kDecay = 0.5;  // of what a reader counts, with each hop
constexpr std::array<double, 5> kSmoothing = {1, 2, 3, 2, 1};

}  // namespace

std::vector<double> SegmentPriorFeature(const std::vector<SegmentPrior>& segments, size_t tokens) {
  std::vector<double> prior(tokens, -1.0);  // not known
  double sum = 0;
  size_t known = 0;
  for (const SegmentPrior& segment : segments) {
    if (segment.distances.empty() && !segment.unread) continue;
    double value = 0;
    for (const uint32_t distance : segment.distances) value += std::pow(kDecay, static_cast<double>(distance) - 1);
    for (size_t t = segment.first_token; t < std::min(segment.first_token + segment.tokens, tokens); ++t, ++known) {
      prior[t] = value;
      sum += value;
    }
  }
  if (sum == 0) return {};
  std::replace_if(prior.begin(), prior.end(), [](double x) { return x < 0; }, sum / static_cast<double>(known));
  return prior;
}

std::vector<double> AnchorFeature(const std::vector<Anchor>& anchors, size_t tokens) {
  std::vector<double> mass(tokens, 0.0);
  bool any = false;
  for (const Anchor& anchor : anchors) {
    if (anchor.token >= tokens) continue;
    any = true;
    for (size_t i = 0; i < kSmoothing.size(); ++i) {
      const size_t token = anchor.token + i;  // less 2, which may lie before the first
      if (token >= 2 && token - 2 < tokens) mass[token - 2] += kSmoothing[i] * static_cast<double>(anchor.weight);
    }
  }
  return any ? mass : std::vector<double>();
}

}  // namespace qkvshare
