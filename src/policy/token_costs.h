// What quantizing a token is expected to cost, from measured errors and measured attention.
#pragma once

#include <array>
#include <vector>

#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "quant/bit_plan.h"
#include "quant/channel_profile.h"
#include "quant/kv_view.h"

namespace qkvshare {

// Expected error of the attention output, relative to its size, summed over layers and heads: of each token with its
// keys (values) at kWidths[i] and all else exact. [widths][tokens]; zero at 16 bits.
struct TokenCosts {
  std::array<std::vector<double>, kWidths.size()> keys, values;
};

// A key's error dk moves the output by weight * (q.dk) * (v - output), a value's by weight * dv. In the space of the
// codes dk has no direction of its own, so (q.dk)^2 is taken as |q|^2 |dk|^2 / dim. Linear in the attention weight,
// with a floor of uniform attention: squared weights overfit to the window (measured: twice the KL). window: at least
// one query. kInvalidArgument where its layers are not those of kv; kNonFinite as packing. Cost: three products of
// queries x tokens x head_dim a head, and two quantizations of every row.
Result<TokenCosts> MeasureTokenCosts(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window,
                                     int threads);

// The same cost for every token: what a policy without knowledge assumes.
TokenCosts EqualTokenCosts(size_t tokens);

}  // namespace qkvshare
