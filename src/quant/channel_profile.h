// Channel statistics of keys: what is taken out of them before they are quantized.
#pragma once

#include <cstddef>
#include <vector>

#include "quant/half.h"
#include "quant/kv_view.h"

namespace qkvshare {

// The first tokens of a sequence are attention sinks: they stay exact and out of the channel means.
inline constexpr size_t kSinkTokens = 4;

// Of one KV head: k is stored as (k - mean) / scale. Empty vectors: neither is applied.
struct ChannelProfile {
  std::vector<Half> mean;   // [dim]
  std::vector<Half> scale;  // [dim], > 0

  bool empty() const { return mean.empty(); }
};

// Mean of each channel over rows [first, tokens), and as scale the root of the largest distance from it. Empty where no
// row is left. Source: the design's measured recipe; the root splits the range between key and query.
ChannelProfile MeasureKeyProfile(const HeadRows& keys, size_t first);

// Profiles of a whole cache: [layer][kv_head]. Empty where no token is left after the exact ones.
using KeyProfiles = std::vector<std::vector<ChannelProfile>>;
KeyProfiles MeasureKeyProfiles(const KvView& kv, size_t exact_tokens, int threads);

}  // namespace qkvshare
