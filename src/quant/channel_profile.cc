#include "quant/channel_profile.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"

namespace qkvshare {

bool IsValidChannelScale(Half scale) { return IsFiniteHalf(scale) && HalfToFloat(scale) >= kSmallestChannelScale; }

bool IsValidProfile(const ChannelProfile& profile, size_t dim) {
  return profile.mean.size() == dim && profile.scale.size() == dim &&
         std::all_of(profile.mean.begin(), profile.mean.end(), IsFiniteHalf) &&
         std::all_of(profile.scale.begin(), profile.scale.end(), IsValidChannelScale);
}

void KeyStatistics::Add(const HeadRows& keys, size_t first) {
  if (first >= keys.tokens) return;
  if (rows_ == 0) {
    for (size_t c = 0; c < keys.dim; ++c) least_[c] = most_[c] = HalfToFloat(keys.row(first)[c]);
  }
  for (size_t token = first; token < keys.tokens; ++token) {
    const Half* row = keys.row(token);
    for (size_t c = 0; c < keys.dim; ++c) {
      const float x = HalfToFloat(row[c]);
      sum_[c] += static_cast<double>(x);
      least_[c] = std::min(least_[c], x);
      most_[c] = std::max(most_[c], x);
    }
  }
  rows_ += keys.tokens - first;
}

ChannelProfile KeyStatistics::Profile() const {
  ChannelProfile profile;
  if (rows_ == 0) return profile;
  for (size_t c = 0; c < sum_.size(); ++c) {
    const Half mean = FloatToHalf(static_cast<float>(sum_[c] / static_cast<double>(rows_)));
    const float farthest = std::max(most_[c] - HalfToFloat(mean), HalfToFloat(mean) - least_[c]);
    profile.mean.push_back(mean);
    profile.scale.push_back(FloatToHalf(std::max(std::sqrt(farthest), kSmallestChannelScale)));
  }
  return profile;
}

ChannelProfile MeasureKeyProfile(const HeadRows& keys, size_t first) {
  KeyStatistics statistics(keys.dim);
  statistics.Add(keys, first);
  return statistics.Profile();
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
