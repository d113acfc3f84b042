// From features to one multiplier a token: the paper's score S(t) = alpha * I(t) + (1 - alpha) * T(t).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/allocator.h"
#include "policy/features.h"
#include "policy/transferability.h"
#include "qkvshare/status.h"

namespace qkvshare {

struct ScoreInput {
  const AttentionStats& attention;
  std::span<const int32_t> token_ids;              // [tokens]
  std::span<const TokenPrediction> predictions{};  // [tokens], or empty: not computed
  const Transferability& transfer;
};

struct Score {
  std::vector<double> multiplier;  // [tokens]; the token's costs are multiplied by it
  FeatureSet used;                 // of the features asked for, those that there was something to know of
};

// I(t) and T(t) are plain means of their features, each scaled to a mean of 1 over the tokens that are not fixed (where
// it is 0 for all of them: 1). `attention` counts as 1 in I(t), being in the costs that the score multiplies, and so
// does `probe` in T(t); a mean of nothing is 1. topology: whether T(t) counts; else alpha is 1. kInvalidArgument where
// a feature that was asked for by name has nothing to go by, or topology knows nothing of the receivers.
Result<Score> MakeScore(const ScoreInput& input, const FeatureSet& features, bool topology, double alpha,
                        FixedTokens fixed);

}  // namespace qkvshare
