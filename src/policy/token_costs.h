// What quantizing a token is expected to cost, from measured errors and measured attention.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "policy/attention_window.h"
#include "policy/earlier_rows.h"
#include "qkvshare/status.h"
#include "quant/bit_plan.h"
#include "quant/channel_profile.h"
#include "quant/error_metric.h"
#include "quant/kv_view.h"

namespace qkvshare {

// Expected error of the attention output, relative to its size, summed over layers and heads: of each token with its
// keys (values) at kWidths[i], adjusted in each layer, and all else exact. [widths][tokens]; zero at 16 bits.
struct TokenCosts {
  std::array<std::vector<double>, kWidths.size()> keys, values;

  size_t tokens() const { return keys[0].size(); }
};

// What the queries of a window make of each token: sums over layers, heads and queries of the attention weight w that
// the token gets. [earlier tokens + tokens] each.
struct AttentionStats {
  std::vector<double> mass;      // w
  std::vector<double> squares;   // w^2; empty unless asked for
  std::vector<double> log_mass;  // w log w; empty unless asked for
  std::vector<double> seen_by;   // 1: of the queries that see the token
  double rows = 0;               // queries in all that see a token; the weights of each sum to 1

  // Of the tokens from `first` on.
  AttentionStats From(size_t first) const;
};

// Rows of each head and side that are quantized to measure errors.
inline constexpr size_t kMeasuredRows = 128;

struct CostOptions {
  bool attention = true;                    // false: as if all that a query sees got the same weight
  bool spread = false;                      // also measures squares and log_mass
  std::span<const LayerAdjustment> layers;  // one a layer, or empty
  const EarlierRows* earlier = nullptr;     // that queries see too, before those of kv; null: none
  const KeyMetrics* metrics = nullptr;      // in which keys are rounded; null or empty: none
  size_t measured_rows = kMeasuredRows;
  size_t layer_step = 1;  // measures every such one of the layers that have the same window, the last included
  int threads = 1;
};

struct MeasuredCosts {
  TokenCosts costs;
  AttentionStats attention;
};

// A key's error dk moves the output by weight * (q.dk) * (v - output), a value's by weight * dv. In the space of the
// codes dk has no direction of its own, so (q.dk)^2 is taken as |q|^2 |dk|^2 / dim. Linear in the attention weight,
// with a floor of uniform attention: squared weights overfit to the window (measured: twice the KL).
//
// |dk|^2 and |dv|^2 are measured at every width on at most measured_rows rows of a head, evenly spread; past that,
// every row's is the mean share of its squared length that they lose, which varies little from row to row after the
// rotation.
//
// Costs are those of kv's tokens, weights and output those of attention over all that a query sees, earlier rows too.
//
// window: at least one query; its tokens count from the first of kv. kInvalidArgument where its layers are not those of
// kv; kNonFinite as packing; errors of EarlierRows::fill. Cost: three products of queries x tokens x head_dim a head,
// and the quantization of the measured rows.
Result<MeasuredCosts> MeasureTokenCosts(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window,
                                        const CostOptions& options);

// Only the attention: one of the products, and no quantization.
Result<AttentionStats> MeasureAttention(const KvView& kv, const AttentionWindow& window, int threads,
                                        const EarlierRows* earlier = nullptr, size_t layer_step = 1);

// The same cost for every token: what a policy without knowledge assumes.
TokenCosts EqualTokenCosts(size_t tokens);

// Each scaled to a sum of 1 at the narrowest width, then share * first + (1 - share) * second: what two windows, that
// of the sender and one of a receiver, expect together. Both of the same tokens.
TokenCosts MixTokenCosts(const TokenCosts& first, const TokenCosts& second, double share);

// Multiplies the costs of each token. multiplier: [tokens].
void ScaleTokenCosts(std::span<const double> multiplier, TokenCosts* costs);

}  // namespace qkvshare
