// What a learned controller (controller.h) looks at of each token: the paper's six features as raw numbers, and the
// closed form's cost. Labels to train on (eval/sensitivity) and inference take them from here, so that they agree.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policy/features.h"
#include "policy/token_costs.h"
#include "qkvshare/status.h"

namespace qkvshare {

enum class ControllerInput : uint8_t {
  kAttention,    // mean attention weight, in units of uniform attention over the context
  kVariance,     // its standard deviation over layers, heads and queries, in the same units
  kEntropy,      // AttentionEntropy, 0 to 1
  kRarity,       // Rarity, nats
  kConfidence,   // Confidence, 0 to 1
  kNextEntropy,  // NextEntropy, nats
  kCost,         // C(t) at 2 bits for keys and values: expected error of an attention output, as a share of its size
};
inline constexpr size_t kControllerInputCount = 7;

// "attention", "variance", "entropy", "rarity", "confidence", "next_entropy", "cost".
const char* ControllerInputName(ControllerInput input);
// kInvalidArgument names those that there are.
Result<ControllerInput> ControllerInputFromName(const std::string& name);
// The feature of the policy that the input is made of; that of kCost is kAttention.
Feature FeatureOf(ControllerInput input);

// What is known of the tokens to pack. Everything is referenced.
struct ControllerFacts {
  const AttentionStats& attention;  // of these tokens; squares and log_mass where variance or entropy are wanted
  const TokenCosts& costs;
  size_t context_tokens = 0;  // of the whole context, tokens before these included
  std::span<const int32_t> token_ids;
  std::span<const TokenPrediction> predictions{};  // may be empty where neither confidence nor next_entropy is wanted
};

// [tokens] for each of `inputs`, in their order: finite and at least 0. kInvalidArgument where predictions are wanted
// and not there.
Result<std::vector<std::vector<double>>> ControllerColumns(const ControllerFacts& facts,
                                                           std::span<const ControllerInput> inputs);

}  // namespace qkvshare
