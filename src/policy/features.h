// What a policy can look at, one function a feature. Each gives a value of at least 0 for every token; score.h makes a
// score of them. docs/policies.md has the definitions side by side.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policy/token_costs.h"
#include "qkvshare/status.h"

namespace qkvshare {

enum class Feature : uint8_t {
  // I(t), of the sender's own text.
  kAttention,  // part of the measured costs (token_costs.h), not a function of its own
  kVariance,
  kEntropy,
  kRarity,
  kConfidence,   // needs the output layer of every token
  kNextEntropy,  // the same
  // T(t), of the receivers (transferability.h).
  kPrior,
  kAnchors,
  kProbe,  // a second window in the costs, not a function of its own
};
inline constexpr int kFeatureCount = 9;

// "attention", "variance", "entropy", "rarity", "confidence", "next_entropy", "prior", "anchors", "probe".
const char* FeatureName(Feature feature);

// Which features a policy may use.
struct FeatureSet {
  uint32_t on = 0;     // bits, 1 << feature
  uint32_t named = 0;  // of those: asked for by name, so that it is an error where they cannot be had

  bool Has(Feature feature) const { return ((on >> static_cast<int>(feature)) & 1) != 0; }
  bool Named(Feature feature) const { return ((named >> static_cast<int>(feature)) & 1) != 0; }
  void Set(Feature feature, bool value);
  // Whether the prefill must compute the logits of every token.
  bool NeedsPredictions() const { return Has(Feature::kConfidence) || Has(Feature::kNextEntropy); }
  std::vector<std::string> Names() const;

  friend bool operator==(const FeatureSet&, const FeatureSet&) = default;
};

// attention, and of the receivers whatever is known: prior, anchors and probe.
FeatureSet DefaultFeatures();
// All.
FeatureSet FullFeatures();

// A comma-separated list of names, `default` and `full`; "-name" takes one out, "+name" adds one. A list that starts
// with a sign changes the default. kInvalidArgument for an unknown name or an empty list.
Result<FeatureSet> ParseFeatures(const std::string& list);

// How the model predicted a token of its own prompt, and what came after it.
struct TokenPrediction {
  float log_probability = 0;  // of the token, given those before it; not read of the first
  float next_entropy = 0;     // of the next-token distribution at the token, nats
};

// Of the next-token distribution of one row of logits [vocab]: logarithm of the probability of `next` (-1: 0), and
// entropy. scratch: kept between calls. Cost: one exp a logit.
struct RowPrediction {
  float next_log_probability = 0;
  float entropy = 0;
};
RowPrediction PredictionOf(std::span<const float> logits, int32_t next, std::vector<float>* scratch);

// Standard deviation of the attention weight of a token over layers, heads and the queries that see it: high where few
// heads or queries look at it, and hard. The root, so that a token counts linearly in its weights (squares overfit).
// Source: the paper's attention variance. Free with the costs.
std::vector<double> AttentionVariance(const AttentionStats& stats);

// Entropy of the attention that a token gets, over layers, heads and queries, as a share of the most there can be: 1
// where all look at it alike, 0 where one does. Source: the paper's attention entropy. Free with the costs.
std::vector<double> AttentionEntropy(const AttentionStats& stats);

// Surprise, in nats, of a token's id under the counts of the ids before it, each id of the text counted once more:
// -log((count + 1) / (position + ids)). Source: the paper's rarity from running counts. Cost: one look-up a token.
std::vector<double> Rarity(std::span<const int32_t> token_ids);

// Probability that the model gave to the token itself; the first, which none predicted, gets the mean. Source: the
// paper's quality score. Needs the output layer.
std::vector<double> Confidence(std::span<const TokenPrediction> predictions);

// Entropy of the next-token distribution at the token, nats. Source: the paper's entropy of the output. Needs the
// output layer.
std::vector<double> NextEntropy(std::span<const TokenPrediction> predictions);

}  // namespace qkvshare
