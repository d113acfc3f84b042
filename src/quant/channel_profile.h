// Channel statistics of keys: what is taken out of them before they are quantized.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "quant/half.h"
#include "quant/kv_view.h"

namespace qkvshare {

// The first tokens of a sequence are attention sinks: they stay exact and out of the channel means.
inline constexpr size_t kSinkTokens = 4;

// How many of `tokens` tokens are sinks, the first of which is token `first` of its context.
constexpr size_t SinksOf(size_t first, size_t tokens) {
  return first < kSinkTokens ? std::min(kSinkTokens - first, tokens) : 0;
}

// Also that of a channel which never changes: nothing is divided by zero, or grows past the range of a float.
inline constexpr float kSmallestChannelScale = 1e-4f;

// Of one KV head: k is stored as (k - mean) / scale. Empty vectors: neither is applied.
struct ChannelProfile {
  std::vector<Half> mean;   // [dim]
  std::vector<Half> scale;  // [dim], at least kSmallestChannelScale

  bool empty() const { return mean.empty(); }
  friend bool operator==(const ChannelProfile&, const ChannelProfile&) = default;
};

// Finite and at least kSmallestChannelScale, as FP16 has it.
bool IsValidChannelScale(Half scale);

// Of `dim` channels, means finite, scales finite and at least kSmallestChannelScale. An empty profile is not one of
// `dim` channels.
bool IsValidProfile(const ChannelProfile& profile, size_t dim);

// Gathers the channel statistics of one KV head from any number of caches.
class KeyStatistics {
 public:
  explicit KeyStatistics(size_t dim) : sum_(dim, 0.0), least_(dim), most_(dim) {}

  // Adds rows [first, keys.tokens), which should be finite.
  void Add(const HeadRows& keys, size_t first);
  size_t rows() const { return rows_; }
  // Mean of each channel, and as scale the root of the largest distance from it. Empty where there are no rows.
  // Source: the design's measured recipe; the root splits the range between key and query.
  ChannelProfile Profile() const;

 private:
  size_t rows_ = 0;
  std::vector<double> sum_;
  std::vector<float> least_, most_;
};

// The profile of rows [first, tokens); of rows that are not finite it means nothing, and packing refuses them.
ChannelProfile MeasureKeyProfile(const HeadRows& keys, size_t first);

// Profiles of a whole cache: [layer][kv_head]. Empty where no token is left after the exact ones.
using KeyProfiles = std::vector<std::vector<ChannelProfile>>;
KeyProfiles MeasureKeyProfiles(const KvView& kv, size_t exact_tokens, int threads);

}  // namespace qkvshare
