#include "eval/join.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class JoinTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    TinyModelSpec spec;
    spec.half_matrices = false;
    model_ = LoadTiny(spec);
    session_ = MakeSession(*model_, FusedOptions());
  }
  static JoinRequest Request(size_t documents) {
    JoinRequest request;
    for (size_t i = 0; i < documents; ++i)
      request.documents.push_back(SomeTokens(60 + 10 * i, static_cast<int32_t>(i)));
    request.questions = {SomeTokens(15, 77)};
    request.predict = 20;
    return request;
  }
  static const JoinWay& Way(const JoinReport& report, const std::string& name) {
    const auto way =
        std::find_if(report.ways.begin(), report.ways.end(), [&](const JoinWay& w) { return w.name == name; });
    EXPECT_NE(way, report.ways.end()) << name;
    return *way;
  }
  // Over both, in nats.
  static double WorstMean(const JoinWay& way) { return std::max(way.questions.mean_kl, way.answers.mean_kl); }
  static double LeastMean(const JoinWay& way) { return std::min(way.questions.mean_kl, way.answers.mean_kl); }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
};

TEST_F(JoinTest, OneDocumentLosesNothingButByItsCodec) {
  JoinRequest request = Request(1);
  request.code_bits = 16;
  const JoinReport exact = Take(MeasureJoin(session_.get(), request));
  EXPECT_EQ(exact.card_tokens, (std::vector<size_t>{60}));
  const size_t answer_tokens = exact.ways[0].answers.tokens;
  ASSERT_GE(answer_tokens, 3u);
  ASSERT_EQ(exact.ways.size(), 8u);
  for (const JoinWay& way : exact.ways) {
    EXPECT_EQ(way.questions.tokens, 14u) << way.name;
    EXPECT_EQ(way.answers.tokens, answer_tokens) << way.name;
    if (way.name == "nothing" || way.name == "noise floor") continue;
    // The rows are the same: restored, llama.cpp computes the same; attended to, it is rounded in another way.
    const bool restored = way.name.ends_with("restore");
    EXPECT_LE(WorstMean(way), restored ? 0.0 : 1e-3) << way.name;
    if (restored) {
      EXPECT_EQ(way.texts, exact.answers) << way.name;
    }
  }
  EXPECT_LT(WorstMean(Way(exact, "noise floor")), 1e-3);
  EXPECT_GT(LeastMean(Way(exact, "nothing")), 0.1);
  // At few bits, no more than the same prefill packed as one card loses.
  request.code_bits = 4;
  const JoinReport narrow = Take(MeasureJoin(session_.get(), request));
  EXPECT_EQ(Way(narrow, "joined, restore").answers.mean_kl, Way(narrow, "one card, restore").answers.mean_kl);
  EXPECT_GT(LeastMean(Way(narrow, "joined, restore")), 1e-5);
  EXPECT_EQ(WorstMean(Way(narrow, "joined exact, restore")), 0.0);
  EXPECT_LT(narrow.card_bytes[0], exact.card_bytes[0]);
}

TEST_F(JoinTest, TwoDocumentsLoseWhatTheSecondHasNotSeenOfTheFirst) {
  for (const size_t documents : {2u, 4u}) {
    JoinRequest request = Request(documents);
    request.code_bits = 8;
    const JoinReport report = Take(MeasureJoin(session_.get(), request));
    EXPECT_EQ(report.card_bytes.size(), documents);
    // Of random weights, so that every token looks at every other: much more than the codec, but no nonsense.
    for (const char* name : {"joined exact, fused", "joined exact, restore", "joined, fused", "joined, restore"}) {
      const JoinWay& way = Way(report, name);
      EXPECT_GT(LeastMean(way), 10 * WorstMean(Way(report, "one card, fused"))) << name;
      EXPECT_LT(WorstMean(way), LeastMean(Way(report, "nothing"))) << name;
      EXPECT_LE(way.answers.mean_kl, way.answers.max_kl);
    }
    // Keys are turned in the one, queries in the other.
    EXPECT_EQ(report.between.answers.tokens, report.ways[0].answers.tokens);
    EXPECT_GT(LeastMean(report.between), 0.0);
    EXPECT_LT(WorstMean(report.between), 0.05 * LeastMean(Way(report, "joined, fused")));
  }
}

TEST_F(JoinTest, SeveralQuestionsCountTogether) {
  JoinRequest request = Request(2);
  const JoinReport first = Take(MeasureJoin(session_.get(), request));
  request.questions = {SomeTokens(9, 50)};
  const JoinReport second = Take(MeasureJoin(session_.get(), request));
  request.questions = {SomeTokens(15, 77), SomeTokens(9, 50)};
  const JoinReport both = Take(MeasureJoin(session_.get(), request));
  EXPECT_EQ(both.answers, (std::vector<std::string>{first.answers[0], second.answers[0]}));
  ASSERT_EQ(both.ways.size(), first.ways.size());
  for (size_t i = 0; i < both.ways.size(); ++i) {
    const Fidelity &a = first.ways[i].questions, &b = second.ways[i].questions, &all = both.ways[i].questions;
    EXPECT_EQ(all.tokens, a.tokens + b.tokens);
    EXPECT_NEAR(all.mean_kl * 22, a.mean_kl * 14 + b.mean_kl * 8, 1e-9) << both.ways[i].name;  // nats; double rounding
    EXPECT_EQ(both.ways[i].texts.size(), i == 0 ? 0u : 2u);
  }
}

TEST_F(JoinTest, OneWayAloneWhereItIsAskedFor) {
  JoinRequest request = Request(2);
  for (const auto& [mode, name] :
       {std::pair{InjectMode::kFused, "fused"}, std::pair{InjectMode::kRestore, "restore"}}) {
    request.inject = mode;
    const JoinReport report = Take(MeasureJoin(session_.get(), request));
    ASSERT_EQ(report.ways.size(), 5u);
    for (size_t i = 1; i + 1 < report.ways.size(); ++i) EXPECT_TRUE(report.ways[i].name.ends_with(name));
    EXPECT_TRUE(report.between.name.empty());
  }
}

TEST_F(JoinTest, RefusesWhatItCannotMeasure) {
  const auto code = [&](const JoinRequest& request) { return MeasureJoin(session_.get(), request).status().code(); };
  EXPECT_EQ(code(Request(0)), StatusCode::kInvalidArgument);
  JoinRequest request = Request(2);
  request.documents[1].clear();
  EXPECT_EQ(code(request), StatusCode::kInvalidArgument);
  request = Request(2);
  request.questions[0].clear();
  EXPECT_EQ(code(request), StatusCode::kInvalidArgument);
  request.questions.clear();
  EXPECT_EQ(code(request), StatusCode::kInvalidArgument);
  request = Request(2);
  request.documents[0] = SomeTokens(450);
  EXPECT_EQ(code(request), StatusCode::kOutOfRange);
  request = Request(2);
  request.inject = InjectMode::kFused;
  session_ = MakeSession(*model_);
  EXPECT_EQ(code(request), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace qkvshare
