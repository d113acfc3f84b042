#include "policy/controller_inputs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace qkvshare {
namespace {

// Three tokens of a context of ten; the last was seen by nobody.
class ControllerInputsTest : public testing::Test {
 protected:
  void SetUp() override {
    stats_.mass = {1, 0.5, 0};
    stats_.squares = {0.5, 0.125, 0};
    stats_.log_mass = {std::log(0.5), 0.5 * std::log(0.25), 0};
    stats_.seen_by = {2, 2, 0};
    stats_.rows = 4;
    costs_ = EqualTokenCosts(3);
    costs_.keys[0] = {2, 4, 6};
    costs_.values[0] = {1, 0, 2};
  }

  std::vector<double> Column(ControllerInput input) const {
    const ControllerFacts facts{stats_, costs_, 10, ids_, predictions_};
    const auto columns = ControllerColumns(facts, {&input, 1});
    EXPECT_TRUE(columns) << columns.status().message();
    return columns ? (*columns)[0] : std::vector<double>();
  }

  AttentionStats stats_;
  TokenCosts costs_;
  const std::vector<int32_t> ids_ = {7, 7, 8};
  const std::vector<TokenPrediction> predictions_ = {{0, 1}, {std::log(0.25F), 2}, {std::log(0.75F), 3}};
};

TEST_F(ControllerInputsTest, InUnitsOfUniformAttention) {
  EXPECT_EQ(Column(ControllerInput::kAttention), (std::vector<double>{5, 2.5, 0}));
  EXPECT_EQ(Column(ControllerInput::kVariance), (std::vector<double>{0, 0, 0}));
  stats_.squares[0] = 1;  // weights 1 and 0: deviation 0.5
  EXPECT_EQ(Column(ControllerInput::kVariance), (std::vector<double>{5, 0, 0}));
}

TEST_F(ControllerInputsTest, CostOfAQuery) {
  EXPECT_EQ(Column(ControllerInput::kCost), (std::vector<double>{0.75, 1, 2}));
  stats_.rows = 0;
  EXPECT_EQ(Column(ControllerInput::kCost), (std::vector<double>{0, 0, 0}));
}

TEST_F(ControllerInputsTest, OthersAreTheFeatures) {
  EXPECT_EQ(Column(ControllerInput::kEntropy), AttentionEntropy(stats_));
  EXPECT_EQ(Column(ControllerInput::kRarity), Rarity(ids_));
  EXPECT_EQ(Column(ControllerInput::kConfidence), Confidence(predictions_));
  EXPECT_EQ(Column(ControllerInput::kNextEntropy), (std::vector<double>{1, 2, 3}));
}

TEST_F(ControllerInputsTest, NeedsPredictions) {
  const ControllerFacts facts{stats_, costs_, 10, ids_};
  const std::vector<ControllerInput> inputs = {ControllerInput::kRarity, ControllerInput::kConfidence};
  const Status status = ControllerColumns(facts, inputs).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("confidence"), std::string::npos);
}

TEST_F(ControllerInputsTest, Names) {
  for (size_t i = 0; i < kControllerInputCount; ++i) {
    const auto input = static_cast<ControllerInput>(i);
    EXPECT_EQ(*ControllerInputFromName(ControllerInputName(input)), input);
  }
  EXPECT_NE(ControllerInputFromName("mood").status().message().find("next_entropy"), std::string::npos);
}

}  // namespace
}  // namespace qkvshare
