#include "quant/channel_profile.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"

namespace qkvshare {
namespace {

constexpr float kSmallestChannelScale = 1e-4f;

}  // namespace

ChannelProfile MeasureKeyProfile(const HeadRows& keys, size_t first) {
  ChannelProfile profile;
  if (first >= keys.tokens) return profile;
  std::vector<double> sum(keys.dim, 0.0);
  for (size_t token = first; token < keys.tokens; ++token) {
    const Half* row = keys.row(token);
    for (size_t c = 0; c < keys.dim; ++c) sum[c] += static_cast<double>(HalfToFloat(row[c]));
  }
  profile.mean.resize(keys.dim);
  const auto n = static_cast<double>(keys.tokens - first);
  for (size_t c = 0; c < keys.dim; ++c) profile.mean[c] = FloatToHalf(static_cast<float>(sum[c] / n));
  std::vector<float> farthest(keys.dim, 0.0f);
  for (size_t token = first; token < keys.tokens; ++token) {
    const Half* row = keys.row(token);
    for (size_t c = 0; c < keys.dim; ++c) {
      farthest[c] = std::max(farthest[c], std::fabs(HalfToFloat(row[c]) - HalfToFloat(profile.mean[c])));
    }
  }
  profile.scale.resize(keys.dim);
  for (size_t c = 0; c < keys.dim; ++c) {
    profile.scale[c] = FloatToHalf(std::max(std::sqrt(farthest[c]), kSmallestChannelScale));
  }
  return profile;
}

KeyProfiles MeasureKeyProfiles(const KvView& kv, size_t exact_tokens, int threads) {
  if (kv.tokens <= exact_tokens) return {};
  KeyProfiles profiles(kv.layers.size());
  (void)ParallelFor(kv.layers.size(), threads, [&](size_t layer) {
    for (uint32_t head = 0; head < kv.layers[layer].shape.kv_heads; ++head) {
      profiles[layer].push_back(MeasureKeyProfile(kv.head(layer, Side::kKeys, head), exact_tokens));
    }
    return Status();
  });
  return profiles;
}

}  // namespace qkvshare
