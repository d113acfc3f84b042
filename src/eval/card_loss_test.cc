#include "eval/card_loss.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class CardLossTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    TinyModelSpec spec;
    spec.half_matrices = false;
    model_ = LoadTiny(spec);
    session_ = MakeSession(*model_);
    Prefill(session_.get(), SomeTokens(100));
  }
  std::shared_ptr<const Card> Pack(double bits) const {
    return std::make_shared<const Card>(PackCard(*session_, bits));
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
};

TEST_F(CardLossTest, IsNoneForAnExactCardAndGrowsAsBitsFall) {
  const auto exact = Pack(16), four = Pack(4), two = Pack(2);
  const Fidelity none = Take(MeasureCardLoss(session_.get(), exact, 32));
  EXPECT_EQ(none.tokens, 32U);
  EXPECT_EQ(none.mean_kl, 0);
  EXPECT_EQ(none.top1_agreement, 1);
  EXPECT_TRUE(session_->tokens().empty());
  Prefill(session_.get(), SomeTokens(100));
  const Fidelity at_four = Take(MeasureCardLoss(session_.get(), four, 32));
  Prefill(session_.get(), SomeTokens(100));
  const Fidelity at_two = Take(MeasureCardLoss(session_.get(), two, 1000));
  EXPECT_EQ(at_two.tokens, 50U);  // half of them
  EXPECT_GT(at_four.mean_kl, 0);
  EXPECT_GT(at_two.mean_kl, at_four.mean_kl);
}

TEST_F(CardLossTest, NeedsTheCardsTokens) {
  const auto card = Pack(4);
  Prefill(session_.get(), SomeTokens(1));
  EXPECT_EQ(MeasureCardLoss(session_.get(), card, 32).status().code(), StatusCode::kInvalidArgument);
  session_->Clear();
  Prefill(session_.get(), SomeTokens(1));
  EXPECT_EQ(MeasureCardLoss(session_.get(), Pack(4), 32).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace qkvshare
