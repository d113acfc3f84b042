#include "policy/features.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "policy/anchors.h"
#include "policy/score.h"
#include "policy/transferability.h"

namespace qkvshare {
namespace {

// Of weights [rows][tokens], each row from a query that sees all tokens.
AttentionStats StatsOf(const std::vector<std::vector<double>>& weights) {
  const size_t tokens = weights[0].size();
  AttentionStats stats;
  stats.rows = static_cast<double>(weights.size());
  stats.seen_by.assign(tokens, stats.rows);
  for (auto* sum : {&stats.mass, &stats.squares, &stats.log_mass}) sum->assign(tokens, 0.0);
  for (const std::vector<double>& row : weights) {
    for (size_t t = 0; t < tokens; ++t) {
      stats.mass[t] += row[t];
      stats.squares[t] += row[t] * row[t];
      if (row[t] > 0) stats.log_mass[t] += row[t] * std::log(row[t]);
    }
  }
  return stats;
}

TEST(ParseFeatures, TakesNamesSetsAndSigns) {
  const auto names = [](const std::string& list) {
    const Result<FeatureSet> set = ParseFeatures(list);
    EXPECT_TRUE(set) << list;
    return set ? set->Names() : std::vector<std::string>();
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("default"), (Names{"attention", "prior", "anchors", "probe"}));
  EXPECT_EQ(names("full").size(), size_t{kFeatureCount});
  EXPECT_EQ(names("rarity,attention"), (Names{"attention", "rarity"}));
  EXPECT_EQ(names("+rarity"), (Names{"attention", "rarity", "prior", "anchors", "probe"}));
  EXPECT_EQ(names("-attention"), (Names{"prior", "anchors", "probe"}));
  EXPECT_EQ(names("full,-confidence,-next_entropy").size(), size_t{kFeatureCount} - 2);
  EXPECT_EQ(names("default,-anchors,+variance"), (Names{"attention", "variance", "prior", "probe"}));
  EXPECT_TRUE(ParseFeatures("default,anchors")->Named(Feature::kAnchors));
  EXPECT_FALSE(ParseFeatures("default")->Named(Feature::kAnchors));
  EXPECT_TRUE(ParseFeatures("full")->NeedsPredictions());
  EXPECT_FALSE(ParseFeatures("default")->NeedsPredictions());
  for (const char* bad : {"", "attention,", "Attention", "attention rarity", "+", "--rarity"}) {
    const Result<FeatureSet> set = ParseFeatures(bad);
    ASSERT_FALSE(set) << bad;
    EXPECT_EQ(set.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(set.status().message().find("next_entropy"), std::string::npos);
  }
}

TEST(PredictionOf, IsTheSoftmax) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> logits(1000), scratch;
  for (float& x : logits) x = normal(random);
  double sum = 0, entropy = 0;
  for (const float x : logits) sum += std::exp(double{x});
  for (const float x : logits) entropy -= std::exp(double{x}) / sum * (double{x} - std::log(sum));
  const RowPrediction prediction = PredictionOf(logits, 17, &scratch);
  // Nats; single precision of sums of a thousand terms.
  EXPECT_NEAR(prediction.entropy, entropy, 1e-4);
  EXPECT_NEAR(prediction.next_log_probability, double{logits[17]} - std::log(sum), 1e-4);
  EXPECT_EQ(PredictionOf(logits, -1, &scratch).next_log_probability, 0.0f);
  EXPECT_NEAR(PredictionOf(std::vector<float>(64, 3.0f), 0, &scratch).entropy, std::log(64.0), 1e-5);
}

TEST(AttentionVariance, IsTheDeviationOverRows) {
  const std::vector<double> deviation = AttentionVariance(StatsOf({{0.5, 0.1, 0.4}, {0.5, 0.3, 0.2}}));
  EXPECT_NEAR(deviation[0], 0.0, 1e-9);
  EXPECT_NEAR(deviation[1], 0.1, 1e-9);
  EXPECT_NEAR(deviation[2], 0.1, 1e-9);
}

TEST(AttentionEntropy, IsOneWhereAllLookAlikeAndZeroWhereOneDoes) {
  const std::vector<double> entropy = AttentionEntropy(StatsOf({{0.5, 0.5, 0.0}, {0.5, 0.0, 0.0}, {0.5, 0.0, 0.0}}));
  EXPECT_NEAR(entropy[0], 1.0, 1e-12);
  EXPECT_NEAR(entropy[1], 0.0, 1e-12);
  EXPECT_EQ(entropy[2], 0.0);  // no attention at all
  const double half = AttentionEntropy(StatsOf({{0.3}, {0.3}, {0.0}, {0.0}}))[0];
  EXPECT_NEAR(half, 0.5, 1e-12);  // log 2 of log 4
}

TEST(Rarity, IsTheSurpriseUnderRunningCounts) {
  const std::vector<int32_t> ids = {7, 7, 9, 7};
  const std::vector<double> rarity = Rarity(ids);
  EXPECT_NEAR(rarity[0], std::log(2.0 / 1.0), 1e-12);
  EXPECT_NEAR(rarity[1], std::log(3.0 / 2.0), 1e-12);
  EXPECT_NEAR(rarity[2], std::log(4.0 / 1.0), 1e-12);
  EXPECT_NEAR(rarity[3], std::log(5.0 / 3.0), 1e-12);
}

TEST(Confidence, IsTheProbabilityAndTheMeanForTheFirst) {
  const std::vector<TokenPrediction> predictions = {{0, 1}, {std::log(0.5f), 2}, {std::log(0.25f), 3}};
  const std::vector<double> confidence = Confidence(predictions);
  EXPECT_NEAR(confidence[0], 0.375, 1e-6);
  EXPECT_NEAR(confidence[1], 0.5, 1e-6);
  EXPECT_NEAR(confidence[2], 0.25, 1e-6);
  EXPECT_EQ(NextEntropy(predictions), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(Confidence(std::vector<TokenPrediction>(1)), std::vector<double>{1});
}

TEST(SegmentPriorFeature, SumsReadersByDistanceAndGivesTheMeanToTheOthers) {
  const std::vector<double> prior = SegmentPriorFeature({{0, 1, {1}}, {1, 2, {2, 3}}, {3, 2, {}}}, 6);
  // 1; 0.5 + 0.25 twice; the mean of these three for segment 3 and for what no segment covers.
  const double mean = (1 + 2 * 0.75) / 3;
  EXPECT_EQ(prior, (std::vector<double>{1, 0.75, 0.75, mean, mean, mean}));
  EXPECT_TRUE(SegmentPriorFeature({{0, 3, {}}}, 3).empty());
  EXPECT_TRUE(SegmentPriorFeature({{0, 3, {}, true}}, 3).empty());
  EXPECT_EQ(SegmentPriorFeature({{0, 1, {1}}, {1, 1, {}, true}}, 3), (std::vector<double>{1, 0, 0.5}));
  EXPECT_TRUE(SegmentPriorFeature({}, 3).empty());
  EXPECT_EQ(SegmentPriorFeature({{2, 100, {1}}}, 3), (std::vector<double>{1, 1, 1}));
}

TEST(AnchorFeature, SmoothsOverTwoTokensAndPassesOverThoseBeyond) {
  EXPECT_EQ(AnchorFeature({{3, 0.5f}}, 7), (std::vector<double>{0, 0.5, 1, 1.5, 1, 0.5, 0}));
  EXPECT_EQ(AnchorFeature({{0, 1.0f}, {99, 1.0f}}, 4), (std::vector<double>{3, 2, 1, 0}));
  EXPECT_EQ(AnchorFeature({{1, 1.0f}, {2, 1.0f}}, 3), (std::vector<double>{3, 5, 5}));
  EXPECT_TRUE(AnchorFeature({{4, 1.0f}}, 4).empty());
  EXPECT_TRUE(AnchorFeature({}, 4).empty());
}

TEST(MakeAnchors, AreTheMostAttendedTokensInOrder) {
  std::vector<double> row(100, 0.001);
  row[0] = 0.5;
  for (size_t t = 20; t < 90; ++t) row[t] = 0.001 * static_cast<double>(t);
  const std::vector<Anchor> anchors = MakeAnchors(StatsOf({row, row}));
  ASSERT_EQ(anchors.size(), kMostAnchors);
  EXPECT_EQ(anchors.front().token, 26u);  // the 64 before 90; not the first token
  EXPECT_EQ(anchors.back().token, 89u);
  EXPECT_NEAR(anchors.back().weight, 0.089f, 1e-6f);
  EXPECT_TRUE(MakeAnchors(StatsOf({{0.5, 0.25, 0.25}})).empty());
  EXPECT_EQ(MakeAnchors(StatsOf({{0.1, 0, 0, 0, 0.4, 0.0, 0.5}})).size(), 2u);  // none without attention
}

TEST(MakeScore, IsTheMeanOfFeaturesScaledOverFreeTokens) {
  const AttentionStats stats = StatsOf({{0.25, 0.25, 0.25, 0.25}});
  const std::vector<int32_t> ids = {1, 1, 1, 1};
  const std::vector<TokenPrediction> predictions = {{0, 9}, {0, 1}, {0, 3}, {0, 9}};
  Transferability transfer;
  transfer.segments = {{0, 2, {1}}, {2, 2, {2}}};
  const FixedTokens fixed = {1, 1};
  const Result<FeatureSet> features = ParseFeatures("attention,next_entropy,prior");
  const Result<Score> score = MakeScore({stats, ids, predictions, transfer}, *features, true, 0.75, fixed);
  ASSERT_TRUE(score) << score.status().message();
  // Tokens 1 and 2 are free: next_entropy 1 and 3 become 0.5 and 1.5, prior 1 and 0.5 become 4/3 and 2/3. Attention
  // is 1.
  EXPECT_NEAR(score->multiplier[1], 0.75 * (1 + 0.5) / 2 + 0.25 * 4 / 3, 1e-12);
  EXPECT_NEAR(score->multiplier[2], 0.75 * (1 + 1.5) / 2 + 0.25 * 2 / 3, 1e-12);
  EXPECT_EQ(score->used.Names(), (std::vector<std::string>{"attention", "next_entropy", "prior"}));
}

TEST(MakeScore, IsOneWhereThereIsNothingToTellTokensApart) {
  const AttentionStats stats = StatsOf({{0.0, 0.0, 0.0}});
  const std::vector<int32_t> ids = {1, 2, 3};
  const Transferability transfer;
  for (const char* list : {"attention", "variance", "-attention"}) {
    const Result<Score> score = MakeScore({stats, ids, {}, transfer}, *ParseFeatures(list), false, 0.5, {0, 0});
    ASSERT_TRUE(score);
    EXPECT_EQ(score->multiplier, (std::vector<double>{1, 1, 1})) << list;
  }
}

}  // namespace
}  // namespace qkvshare
