#include "policy/anchors.h"

#include <algorithm>
#include <cstdint>

#include "quant/channel_profile.h"

namespace qkvshare {

std::vector<Anchor> MakeAnchors(const AttentionStats& stats) {
  std::vector<Anchor> anchors;
  for (size_t t = kSinkTokens; t < stats.mass.size(); ++t) {
    const auto weight = static_cast<float>(stats.mass[t] / stats.rows);
    if (weight > 0) anchors.push_back({static_cast<uint32_t>(t), std::min(weight, 1.0f)});
  }
  const size_t count = std::min(anchors.size(), kMostAnchors);
  const auto end = anchors.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(anchors.begin(), end, anchors.end(), [](const Anchor& a, const Anchor& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  });
  anchors.resize(count);
  std::sort(anchors.begin(), anchors.end(), [](const Anchor& a, const Anchor& b) { return a.token < b.token; });
  return anchors;
}

}  // namespace qkvshare
