#include "eval/receiver_facts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "runtime/inject.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

CardArm Arm(const std::string& text) { return Take(ParseCardArm(text)); }

class ReceiverFactsTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    TinyModelSpec spec;
    spec.half_matrices = false;
    model_ = LoadTiny(spec);
    session_ = MakeSession(*model_, FusedOptions());
  }
  const std::vector<int32_t> context_ = SomeTokens(40), turn_ = SomeTokens(20, 70);
  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
};

TEST_F(ReceiverFactsTest, AnArmIsToldWhatItsFeaturesAskFor) {
  EvalPrompt prompt;
  prompt.context = SomeTokens(20);
  prompt.segments = {{"rules", "", "", 0, 12}, {"facts", "", "", 12, 8}};
  Continuation part{"b", "part", {1}, {2}, {3}, {"facts"}}, all{"a", "question", {1}, {2}, {3}, {}};
  ReceiverFacts facts;
  facts.probe.last_visible = {20};
  facts.oracle.window.last_visible = {20, 21, 22};
  facts.anchors = {{7, 0.5F}};
  const auto options = [&](const char* arm, const Continuation& continuation) {
    return Take(PackOptionsFor(Arm(arm), prompt, continuation, "sender", facts));
  };
  const PackOptions full = options("topology@4", part);
  EXPECT_EQ(full.probe.queries(), 1u);
  EXPECT_EQ(full.anchors, facts.anchors);
  EXPECT_EQ(full.segments[0].readers, (std::vector<SegmentReader>{{"b", 2}}));
  EXPECT_EQ(full.segments[1].readers, (std::vector<SegmentReader>{{"b", 1}}));
  const PackOptions whole = options("topology@4", all);
  for (const Segment& segment : whole.segments) EXPECT_EQ(segment.readers, (std::vector<SegmentReader>{{"a", 1}}));
  const PackOptions probed = options("topology@4,features=attention+probe", part);
  EXPECT_EQ(probed.probe.queries(), 1u);
  EXPECT_TRUE(probed.anchors.empty());
  EXPECT_TRUE(probed.segments[1].readers.empty());
  const PackOptions oracle = options("oracle@4", part);
  EXPECT_EQ(oracle.probe.queries(), 3u);
  EXPECT_TRUE(oracle.anchors.empty());
  EXPECT_TRUE(oracle.segments[1].readers.empty());
  const PackOptions local = options("local@4", part);
  EXPECT_TRUE(local.probe.empty() && local.anchors.empty() && local.segments[1].readers.empty());
  part.roles = {"none"};
  EXPECT_EQ(PackOptionsFor(Arm("topology@4"), prompt, part, "sender", facts).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(ReceiverFactsTest, AnOracleHasTheQueriesOfScoredPredictions) {
  Prefill(session_.get(), context_);
  const OracleQueries oracle = Take(FindOracleQueries(session_.get(), turn_, 5));
  ASSERT_EQ(oracle.window.queries(), turn_.size() - 6);
  EXPECT_EQ(oracle.window.last_visible.front(), context_.size() + 5);
  EXPECT_EQ(oracle.window.last_visible.back(), context_.size() + turn_.size() - 2);
  EXPECT_EQ(oracle.rows->tokens(), context_.size() + turn_.size() - 1);
  EXPECT_EQ(session_->tokens(), context_);
  EXPECT_EQ(FindOracleQueries(session_.get(), turn_, turn_.size() - 1).status().code(), StatusCode::kInvalidArgument);
  // What it is for: a card that goes by them, by shares of all that they see.
  PackOptions options;
  options.policy = Policy::kTopology;
  options.alpha = 0;
  options.features = *ParseFeatures("attention,probe");
  options.code_bits = 3;
  options.probe = oracle.window;
  options.probe_rows = oracle.rows;
  PackTimes times;
  PrefillOptions own;
  own.window = 8;
  session_->Clear();
  ASSERT_TRUE(session_->Prefill(context_, own).ok());
  const Card card = Take(Card::FromBytes(Take(PackSession(*session_, options, &times)).Bytes()));
  EXPECT_EQ(card.tokens(), context_.size());
  EXPECT_EQ(card.info().features, (std::vector<std::string>{"attention", "probe"}));
}

// With so few tokens all are anchors, so that their weights tell whether it is the same attention.
TEST_F(ReceiverFactsTest, AnchorsAreThoseOfTheReceiversOwnCard) {
  Prefill(session_.get(), context_);
  const auto exact = std::make_shared<const Card>(PackCard(*session_, 16));
  const ScoredWithAnchors scored = Take(ScoreWithAnchors(session_.get(), turn_, turn_.size()));
  ASSERT_TRUE(session_->Truncate(context_.size()).ok());
  EXPECT_EQ(Take(ScoreTokens(session_.get(), turn_, 0)).values, scored.rows.values);
  EXPECT_TRUE(session_->window().empty());  // no queries are kept any more
  // The receiver: it takes the card, reads its turn, and packs that.
  const CardPart part{exact, 0, exact->tokens()};
  ASSERT_TRUE(InjectCards({&part, 1}, InjectMode::kFused, session_.get()).status().ok());
  PrefillOptions prefill;
  prefill.window = static_cast<uint32_t>(turn_.size());
  ASSERT_TRUE(session_->Prefill(turn_, prefill).ok());
  const Card delta = PackCard(*session_, 4);
  std::vector<Anchor> theirs(delta.anchors().begin(), delta.anchors().end());
  std::erase_if(theirs, [&](const Anchor& anchor) { return anchor.token >= context_.size(); });
  ASSERT_EQ(scored.anchors.size(), context_.size() - 4);
  ASSERT_EQ(theirs.size(), scored.anchors.size());
  for (size_t i = 0; i < theirs.size(); ++i) {
    EXPECT_EQ(scored.anchors[i].token, theirs[i].token);
    // Rounding of attention over a card.
    EXPECT_NEAR(scored.anchors[i].weight, theirs[i].weight, 0.02F * theirs[i].weight);
  }
}

}  // namespace
}  // namespace qkvshare
