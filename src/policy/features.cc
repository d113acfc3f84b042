#include "policy/features.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "policy/head_matrix.h"

namespace qkvshare {
namespace {

constexpr std::array<const char*, kFeatureCount> kNames = {
    "attention", "variance", "entropy", "rarity", "confidence", "next_entropy", "prior", "anchors", "probe"};

FeatureSet SetOf(std::initializer_list<Feature> features) {
  FeatureSet set;
  for (const Feature feature : features) set.Set(feature, true);
  return set;
}

Status UnknownFeature(const std::string& word) {
  std::string names;
  for (const char* name : kNames) names += std::string(", ") + name;
  return {StatusCode::kInvalidArgument, "unknown feature '" + word + "'; choose from default, full" + names};
}

// One word of a list, without its sign.
Status Apply(const std::string& word, bool add, FeatureSet* set) {
  if (word == "default" || word == "full") {
    const FeatureSet other = word == "full" ? FullFeatures() : DefaultFeatures();
    set->on = add ? set->on | other.on : set->on & ~other.on;
    set->named &= set->on;
    return {};
  }
  const auto name = std::find(kNames.begin(), kNames.end(), word);
  if (name == kNames.end()) return UnknownFeature(word);
  const auto feature = static_cast<Feature>(name - kNames.begin());
  set->Set(feature, add);
  const uint32_t bit = 1U << static_cast<int>(feature);
  set->named = add ? set->named | bit : set->named & ~bit;
  return {};
}

}  // namespace

const char* FeatureName(Feature feature) { return kNames[static_cast<size_t>(feature)]; }

void FeatureSet::Set(Feature feature, bool value) {
  const uint32_t bit = 1U << static_cast<int>(feature);
  on = value ? on | bit : on & ~bit;
}

std::vector<std::string> FeatureSet::Names() const {
  std::vector<std::string> names;
  for (int i = 0; i < kFeatureCount; ++i) {
    if (Has(static_cast<Feature>(i))) names.emplace_back(kNames[static_cast<size_t>(i)]);
  }
  return names;
}

FeatureSet DefaultFeatures() {
  return SetOf({Feature::kAttention, Feature::kPrior, Feature::kAnchors, Feature::kProbe});
}

FeatureSet FullFeatures() { return {(1U << kFeatureCount) - 1, 0}; }

Result<FeatureSet> ParseFeatures(const std::string& list) {
  FeatureSet set;
  if (!list.empty() && (list[0] == '+' || list[0] == '-')) set = DefaultFeatures();
  for (std::string word : Split(list, ',')) {
    const bool add = word.empty() || word[0] != '-';
    if (!word.empty() && (word[0] == '+' || word[0] == '-')) word.erase(0, 1);
    QKV_RETURN_IF_ERROR(Apply(word, add, &set));
  }
  return set;
}

RowPrediction PredictionOf(std::span<const float> logits, int32_t next, std::vector<float>* scratch) {
  scratch->assign(logits.begin(), logits.end());
  const float log_sum = Softmax(*scratch);
  // Entropy of p = exp(x - log_sum): log_sum - sum of p x.
  double mean = 0;
  for (size_t i = 0; i < logits.size(); ++i) mean += static_cast<double>((*scratch)[i] * (logits[i] - log_sum));
  RowPrediction prediction;
  prediction.entropy = static_cast<float>(std::max(-mean, 0.0));
  if (next >= 0) prediction.next_log_probability = logits[static_cast<size_t>(next)] - log_sum;
  return prediction;
}

std::vector<double> AttentionVariance(const AttentionStats& stats) {
  std::vector<double> deviation(stats.mass.size(), 0.0);
  for (size_t t = 0; t < deviation.size(); ++t) {
    const double n = stats.seen_by[t];
    if (n == 0) continue;
    const double mean = stats.mass[t] / n;
    deviation[t] = std::sqrt(std::max(stats.squares[t] / n - mean * mean, 0.0));
  }
  return deviation;
}

std::vector<double> AttentionEntropy(const AttentionStats& stats) {
  std::vector<double> entropy(stats.mass.size(), 0.0);
  for (size_t t = 0; t < entropy.size(); ++t) {
    const double mass = stats.mass[t];
    if (mass <= 0 || stats.seen_by[t] < 2) continue;
    // Of p = w / mass: log(mass) - sum of w log w / mass.
    const double nats = std::log(mass) - stats.log_mass[t] / mass;
    entropy[t] = std::clamp(nats / std::log(stats.seen_by[t]), 0.0, 1.0);
  }
  return entropy;
}

std::vector<double> Rarity(std::span<const int32_t> token_ids) {
  const std::unordered_set<int32_t> ids(token_ids.begin(), token_ids.end());
  std::unordered_map<int32_t, size_t> counts;
  std::vector<double> rarity;
  rarity.reserve(token_ids.size());
  for (const int32_t id : token_ids) {
    const size_t seen = counts[id]++;
    rarity.push_back(std::log(static_cast<double>(rarity.size() + ids.size()) / (static_cast<double>(seen) + 1.0)));
  }
  return rarity;
}

std::vector<double> Confidence(std::span<const TokenPrediction> predictions) {
  std::vector<double> confidence;
  confidence.reserve(predictions.size());
  for (const TokenPrediction& prediction : predictions) {
    confidence.push_back(std::exp(static_cast<double>(prediction.log_probability)));
  }
  if (predictions.size() > 1) {
    confidence[0] =
        std::accumulate(confidence.begin() + 1, confidence.end(), 0.0) / static_cast<double>(confidence.size() - 1);
  }
  return confidence;
}

std::vector<double> NextEntropy(std::span<const TokenPrediction> predictions) {
  std::vector<double> entropy;
  entropy.reserve(predictions.size());
  for (const TokenPrediction& prediction : predictions) entropy.push_back(static_cast<double>(prediction.next_entropy));
  return entropy;
}

}  // namespace qkvshare
