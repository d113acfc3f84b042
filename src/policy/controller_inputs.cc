#include "policy/controller_inputs.h"

#include <algorithm>
#include <utility>

namespace qkvshare {
namespace {

constexpr std::array<const char*, kControllerInputCount> kNames = {"attention",  "variance",     "entropy", "rarity",
                                                                   "confidence", "next_entropy", "cost"};

// Weights of a longer context are smaller: its uniform attention is the unit.
std::vector<double> InUniform(std::vector<double> weights, size_t context_tokens) {
  for (double& weight : weights) weight *= static_cast<double>(context_tokens);
  return weights;
}

std::vector<double> MeanWeight(const AttentionStats& stats) {
  std::vector<double> mean(stats.mass.size(), 0.0);
  for (size_t t = 0; t < mean.size(); ++t) {
    if (stats.seen_by[t] > 0) mean[t] = stats.mass[t] / stats.seen_by[t];
  }
  return mean;
}

std::vector<double> NarrowestCost(const TokenCosts& costs, double rows) {
  std::vector<double> cost(costs.tokens(), 0.0);
  for (size_t t = 0; t < cost.size(); ++t) {
    if (rows > 0) cost[t] = (costs.keys[0][t] + costs.values[0][t]) / rows;
  }
  return cost;
}

std::vector<double> Column(const ControllerFacts& facts, ControllerInput input) {
  switch (input) {
    case ControllerInput::kAttention: return InUniform(MeanWeight(facts.attention), facts.context_tokens);
    case ControllerInput::kVariance: return InUniform(AttentionVariance(facts.attention), facts.context_tokens);
    case ControllerInput::kEntropy: return AttentionEntropy(facts.attention);
    case ControllerInput::kRarity: return Rarity(facts.token_ids);
    case ControllerInput::kConfidence: return Confidence(facts.predictions);
    case ControllerInput::kNextEntropy: return NextEntropy(facts.predictions);
    case ControllerInput::kCost: return NarrowestCost(facts.costs, facts.attention.rows);
  }
  return {};
}

}  // namespace

const char* ControllerInputName(ControllerInput input) { return kNames[static_cast<size_t>(input)]; }

Result<ControllerInput> ControllerInputFromName(const std::string& name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<ControllerInput>(found - kNames.begin());
  std::string names;
  for (const char* known : kNames) names += (names.empty() ? "" : ", ") + std::string(known);
  return Status(StatusCode::kInvalidArgument, "unknown input '" + name + "'; there are " + names);
}

Feature FeatureOf(ControllerInput input) {
  switch (input) {
    case ControllerInput::kAttention:
    case ControllerInput::kCost: return Feature::kAttention;
    case ControllerInput::kVariance: return Feature::kVariance;
    case ControllerInput::kEntropy: return Feature::kEntropy;
    case ControllerInput::kRarity: return Feature::kRarity;
    case ControllerInput::kConfidence: return Feature::kConfidence;
    case ControllerInput::kNextEntropy: return Feature::kNextEntropy;
  }
  return Feature::kAttention;
}

Result<std::vector<std::vector<double>>> ControllerColumns(const ControllerFacts& facts,
                                                           std::span<const ControllerInput> inputs) {
  std::vector<std::vector<double>> columns;
  for (const ControllerInput input : inputs) {
    const bool predicts = input == ControllerInput::kConfidence || input == ControllerInput::kNextEntropy;
    if (predicts && facts.predictions.size() != facts.token_ids.size()) {
      return Status(StatusCode::kInvalidArgument, std::string("the controller looks at ") + ControllerInputName(input) +
                                                      ", which needs the logits of every token of the prefill");
    }
    columns.push_back(Column(facts, input));
  }
  return columns;
}

}  // namespace qkvshare
