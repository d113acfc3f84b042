#include "policy/score.h"

#include <algorithm>
#include <string>
#include <utility>

namespace qkvshare {
namespace {

class ScoreMaker {
 public:
  ScoreMaker(const ScoreInput& input, const FeatureSet& features, FixedTokens fixed)
      : input_(input), features_(features), fixed_(fixed) {}

  Result<Score> Make(bool topology, double alpha) {
    const size_t tokens = input_.token_ids.size();
    if (features_.NeedsPredictions() && input_.predictions.size() != tokens) {
      return Status(StatusCode::kInvalidArgument,
                    "features confidence and next_entropy need the logits of every token of the prefill");
    }
    const std::vector<double> importance = Importance();
    Score score{importance, used_};
    if (!topology) {
      QKV_RETURN_IF_ERROR(RefuseReceiverFeatures());
      return score;
    }
    QKV_ASSIGN_OR_RETURN(const std::vector<double> transferability, ReceiverScore());
    for (size_t t = 0; t < tokens; ++t) {
      score.multiplier[t] = alpha * importance[t] + (1 - alpha) * transferability[t];
    }
    for (const SegmentPrior& segment : input_.transfer.segments) {
      if (!segment.unread) continue;
      const size_t end = std::min(segment.first_token + segment.tokens, tokens);
      for (size_t t = segment.first_token; t < end; ++t) score.multiplier[t] = 0;
    }
    score.used = used_;
    return score;
  }

 private:
  // A mean of features, to which each is added as it comes.
  class Mean {
   public:
    explicit Mean(size_t tokens) : sum_(tokens, 0.0) {}
    void AddOne() {
      for (double& x : sum_) x += 1;
      ++count_;
    }
    void Add(const std::vector<double>& feature) {
      for (size_t t = 0; t < sum_.size(); ++t) sum_[t] += feature[t];
      ++count_;
    }
    std::vector<double> Take() {
      if (count_ == 0) AddOne();
      for (double& x : sum_) x /= count_;
      return std::move(sum_);
    }

   private:
    std::vector<double> sum_;
    int count_ = 0;
  };

  bool Use(Feature feature) {
    if (features_.Has(feature)) used_.Set(feature, true);
    return features_.Has(feature);
  }

  // I(t).
  std::vector<double> Importance() {
    Mean mean(input_.token_ids.size());
    if (Use(Feature::kAttention)) mean.AddOne();
    if (Use(Feature::kVariance)) mean.Add(Normalized(AttentionVariance(input_.attention)));
    if (Use(Feature::kEntropy)) mean.Add(Normalized(AttentionEntropy(input_.attention)));
    if (Use(Feature::kRarity)) mean.Add(Normalized(Rarity(input_.token_ids)));
    if (Use(Feature::kConfidence)) mean.Add(Normalized(Confidence(input_.predictions)));
    if (Use(Feature::kNextEntropy)) mean.Add(Normalized(NextEntropy(input_.predictions)));
    return mean.Take();
  }

  // T(t).
  Result<std::vector<double>> ReceiverScore() {
    const size_t tokens = input_.token_ids.size();
    const Transferability& transfer = input_.transfer;
    Mean mean(tokens);
    bool known = false;
    const auto missing = [&](Feature feature, bool there) {
      if (there && Use(feature)) known = true;
      return !there && features_.Named(feature);
    };
    const std::vector<double> prior = SegmentPriorFeature(transfer.segments, tokens);
    const std::vector<double> anchors = AnchorFeature(transfer.anchors, tokens);
    if (missing(Feature::kPrior, !prior.empty())) return Missing("prior: no segment has a known reader");
    if (missing(Feature::kAnchors, !anchors.empty())) return Missing("anchors: there are none in this context");
    if (missing(Feature::kProbe, !transfer.probe.empty())) return Missing("probe: there are no queries of a receiver");
    if (!known) {
      return Status(StatusCode::kInvalidArgument,
                    "policy topology knows nothing of the receivers: give readers or anchors, or use local");
    }
    if (used_.Has(Feature::kPrior)) mean.Add(Normalized(prior));
    if (used_.Has(Feature::kAnchors)) mean.Add(Normalized(anchors));
    if (used_.Has(Feature::kProbe)) mean.AddOne();
    return mean.Take();
  }

  static Status Missing(const std::string& what) { return {StatusCode::kInvalidArgument, "feature " + what}; }

  Status RefuseReceiverFeatures() const {
    for (const Feature feature : {Feature::kPrior, Feature::kAnchors, Feature::kProbe}) {
      if (!features_.Named(feature)) continue;
      return Missing(std::string(FeatureName(feature)) + " is of the receivers: it counts in policy topology only");
    }
    return {};
  }

  std::vector<double> Normalized(std::vector<double> feature) const {
    const size_t tokens = feature.size();
    double sum = 0;
    for (size_t t = 0; t < tokens; ++t) sum += fixed_.contains(t, tokens) ? 0.0 : feature[t];
    const auto free = static_cast<double>(tokens - fixed_.count(tokens));
    for (double& x : feature) x = sum > 0 ? x * (free / sum) : 1.0;
    return feature;
  }

  const ScoreInput& input_;
  const FeatureSet& features_;
  const FixedTokens fixed_;
  FeatureSet used_;
};

}  // namespace

Result<Score> MakeScore(const ScoreInput& input, const FeatureSet& features, bool topology, double alpha,
                        FixedTokens fixed) {
  return ScoreMaker(input, features, fixed).Make(topology, alpha);
}

}  // namespace qkvshare
