// Several sequences that take a token each from one call: each gets what it would get alone.
#include <gtest/gtest.h>

#include "tests/fused_fixture.h"

namespace qkvshare {
namespace {

// With a sliding window of so many tokens, or none.
class TogetherTest : public SessionTest, public testing::WithParamInterface<int> {
 protected:
  static constexpr int kSequences = 4;

  void SetUp() override {
    SessionTest::SetUp();
    TinyModelSpec spec;
    if (GetParam() > 0) spec.architecture = "gemma3";
    spec.sliding_window = GetParam();
    spec.half_matrices = false;
    model_ = LoadTiny(spec);
    SessionOptions options = FusedOptions();
    options.sequences = kSequences;
    session_ = MakeSession(*model_, options);
    const auto sender = MakeSession(*model_);
    Prefill(sender.get(), SomeTokens(80));
    card_ = Place(PackCard(*sender, 8));
  }

  static std::vector<int32_t> Prompt(int sequence) {
    return SomeTokens(20 + 13 * static_cast<size_t>(sequence), sequence);
  }
  // The odd ones begin with a card.
  void Begin(Session* session, int sequence, int as) {
    session->Clear(sequence);
    if (as % 2 == 1) {
      EXPECT_TRUE(session->AttachCards({card_}, sequence).ok());
    }
    const std::vector<int32_t> prompt = Prompt(as);
    const Status status = session->Prefill(std::span(prompt).first(prompt.size() - 1), {}, sequence);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  // All of them, each before its prompt's last token; then these together.
  void BeginAll() {
    std::vector<SequenceTokens> parts;
    for (int i = 0; i < kSequences; ++i) {
      Begin(session_.get(), i, i);
      last_.push_back({Prompt(i).back()});
    }
    for (int i = 0; i < kSequences; ++i) parts.push_back({i, last_[static_cast<size_t>(i)]});
    const Status status = session_->DecodeTogether(parts);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  // In a session where the others never were.
  void BeginAlone(Session* alone, int as) {
    Begin(alone, 0, as);
    Prefill(alone, {Prompt(as).back()});
  }
  std::vector<float> LogitsOf(const Session& session, int sequence) {
    const float* logits = session.logits(sequence);
    EXPECT_NE(logits, nullptr);
    return {logits, logits + model_->vocab_size()};
  }
  GenerateOptions Options(size_t predict, uint32_t seed) {
    GenerateOptions options;
    options.predict = predict;
    options.sampling.seed = seed;
    return options;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
  PlacedCard card_;
  std::vector<std::vector<int32_t>> last_;
};

TEST_P(TogetherTest, EachHasTheLogitsThatItHasAlone) {
  BeginAll();
  const auto alone = MakeSession(*model_, FusedOptions());
  for (int i = 0; i < kSequences; ++i) {
    SCOPED_TRACE(i);
    BeginAlone(alone.get(), i);
    EXPECT_EQ(session_->tokens(i), alone->tokens());
    EXPECT_LT(RelativeError(LogitsOf(*session_, i), LogitsOf(*alone, 0)), kExactError);
    EXPECT_EQ(Take(session_->TakeKv(i)).tokens(), Prompt(i).size());
  }
  // Who is not in the next call has no logits then.
  const std::vector<int32_t> more = {7, 8};
  const std::vector<SequenceTokens> parts = {{2, more}, {1, std::span(more).first(1)}};
  ASSERT_TRUE(session_->DecodeTogether(parts).ok());
  EXPECT_EQ(session_->logits(0), nullptr);
  EXPECT_EQ(session_->logits(3), nullptr);
  BeginAlone(alone.get(), 2);
  Prefill(alone.get(), more);
  EXPECT_LT(RelativeError(LogitsOf(*session_, 2), LogitsOf(*alone, 0)), kExactError);
}

TEST_P(TogetherTest, EachGeneratesWhatItGeneratesAlone) {
  BeginAll();
  // Of different lengths, so that they drop out one by one.
  std::vector<SequenceOptions> wanted;
  for (int i = 0; i < kSequences; ++i) {
    wanted.push_back({i, Options(5 + 4 * static_cast<size_t>(i), 1)});
    wanted.back().options.sampling.temp = 0;
  }
  const std::vector<Generation> many = Take(GenerateMany(session_.get(), wanted));
  ASSERT_EQ(many.size(), wanted.size());
  const auto alone = MakeSession(*model_, FusedOptions());
  for (int i = 0; i < kSequences; ++i) {
    SCOPED_TRACE(i);
    BeginAlone(alone.get(), i);
    const Generation& generation = many[static_cast<size_t>(i)];
    const size_t predict = wanted[static_cast<size_t>(i)].options.predict;
    EXPECT_EQ(generation.stop, generation.tokens.size() == predict ? StopReason::kLength : StopReason::kEndToken);
    std::vector<int32_t> sampled = generation.tokens;
    if (generation.end_token >= 0) sampled.push_back(generation.end_token);
    for (const int32_t token : sampled) {
      const std::vector<float> logits = Logits(*alone);
      // Of logits with a standard deviation of 3: none is that far off by rounding.
      EXPECT_GE(logits[static_cast<size_t>(token)], *std::max_element(logits.begin(), logits.end()) - 0.05f);
      if (alone->tokens().size() < session_->tokens(i).size()) Prefill(alone.get(), {token});
    }
    EXPECT_EQ(session_->tokens(i), alone->tokens());
    EXPECT_EQ(Take(session_->TakeKv(i)).tokens(), alone->tokens().size() - alone->attached());
  }
}

TEST_P(TogetherTest, EachHasItsOwnDice) {
  const std::vector<int32_t> prompt = SomeTokens(10);
  const std::vector<uint32_t> seeds = {7, 8, 7, 9};
  std::vector<std::vector<Generation>> runs;
  for (int run = 0; run < 2; ++run) {
    std::vector<SequenceTokens> parts;
    std::vector<SequenceOptions> wanted;
    for (int i = 0; i < kSequences; ++i) {
      session_->Clear(i);
      parts.push_back({i, prompt});
      wanted.push_back({i, Options(12, seeds[static_cast<size_t>(i)])});
    }
    ASSERT_TRUE(session_->DecodeTogether(parts).ok());
    runs.push_back(Take(GenerateMany(session_.get(), wanted)));
  }
  for (size_t i = 0; i < kSequences; ++i) EXPECT_EQ(runs[0][i].tokens, runs[1][i].tokens);
  EXPECT_NE(runs[0][0].tokens, runs[0][1].tokens);
  EXPECT_NE(runs[0][0].tokens, runs[0][3].tokens);
}

TEST_P(TogetherTest, TheSameCallGivesTheSameBits) {
  std::vector<std::vector<float>> logits;
  for (int run = 0; run < 2; ++run) {
    last_.clear();
    for (int i = 0; i < kSequences; ++i) session_->Clear(i);
    BeginAll();
    for (int i = 0; i < kSequences; ++i) logits.push_back(LogitsOf(*session_, i));
  }
  for (size_t i = 0; i < kSequences; ++i) EXPECT_EQ(logits[i], logits[i + kSequences]);
}

TEST_P(TogetherTest, WhereTheContextIsFullTheLastEndFirst) {
  SessionOptions options = SmallOptions();
  options.sequences = 3;
  options.context = 64;
  const auto session = MakeSession(*model_, options);
  const std::vector<int32_t> tokens = SomeTokens(20);
  std::vector<SequenceTokens> parts;
  std::vector<SequenceOptions> wanted;
  for (int i = 0; i < 3; ++i) {
    parts.push_back({i, tokens});
    wanted.push_back({i, Options(50, 1)});
  }
  ASSERT_TRUE(session->DecodeTogether(parts).ok());  // 4 cells are left
  const std::vector<Generation> many = Take(GenerateMany(session.get(), wanted));
  EXPECT_EQ(many[0].tokens.size(), 3u);
  EXPECT_EQ(many[1].tokens.size(), 2u);
  EXPECT_EQ(many[2].tokens.size(), 2u);
  for (const Generation& generation : many) EXPECT_EQ(generation.stop, StopReason::kContext);
  EXPECT_EQ(session->tokens(0).size() + session->tokens(1).size() + session->tokens(2).size(), 64u);
}

TEST_P(TogetherTest, CancellingEndsAll) {
  BeginAll();
  std::vector<SequenceOptions> wanted;
  for (int i = 0; i < kSequences; ++i) wanted.push_back({i, Options(30, 1)});
  int pieces = 0;
  wanted[1].options.on_text = [&](const std::string&) {
    if (++pieces == 5) session_->Cancel();
  };
  const std::vector<Generation> many = Take(GenerateMany(session_.get(), wanted));
  for (int i = 0; i < kSequences; ++i) {
    EXPECT_EQ(many[static_cast<size_t>(i)].stop, StopReason::kCancelled);
    EXPECT_EQ(many[static_cast<size_t>(i)].tokens.size(), 5u);
    EXPECT_EQ(session_->tokens(i).size(), Prompt(i).size() + (i % 2 == 1 ? 80 : 0) + 4);
    EXPECT_EQ(Take(session_->TakeKv(i)).tokens(), Prompt(i).size() + 4);
  }
}

TEST_P(TogetherTest, WhatCannotBeDoneChangesNothing) {
  BeginAll();
  const std::vector<int32_t> one = {1}, unknown = {model_->vocab_size()}, many = SomeTokens(40);
  const std::vector<std::vector<SequenceTokens>> wrong = {
      {},
      {{0, one}, {0, one}},
      {{0, one}, {kSequences, one}},
      {{0, one}, {1, {}}},
      {{0, one}, {1, unknown}},
      {{0, many}, {1, many}},  // a call takes 64
  };
  for (const auto& parts : wrong) EXPECT_EQ(session_->DecodeTogether(parts).code(), StatusCode::kInvalidArgument);
  for (int i = 0; i < kSequences; ++i) {
    EXPECT_EQ(session_->tokens(i).size(), Prompt(i).size() + (i % 2 == 1 ? 80 : 0));
    EXPECT_NE(session_->logits(i), nullptr);
  }
  const auto generate = [&](std::vector<SequenceOptions> wanted) {
    return GenerateMany(session_.get(), wanted).status().code();
  };
  EXPECT_EQ(generate({{0, {}}, {0, {}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(generate({{0, {}}, {kSequences, {}}}), StatusCode::kInvalidArgument);
  ASSERT_TRUE(session_->Prefill(one, {}, 1).ok());
  EXPECT_EQ(generate({{0, {}}, {1, {}}}), StatusCode::kInvalidArgument);  // 0 has no logits
  EXPECT_TRUE(Take(GenerateMany(session_.get(), {})).empty());
}

// As a prefill's window of the same tokens, however they were fed; so that what was generated can be packed by a
// policy.
TEST_P(TogetherTest, QueriesAreKeptOfWhateverIsDecoded) {
  constexpr uint32_t kKept = 48;
  const std::vector<int32_t> tokens = SomeTokens(120);
  PrefillOptions prefill;
  prefill.window = kKept;
  prefill.window_stride = 8;
  const auto whole = MakeSession(*model_);
  ASSERT_TRUE(whole->Prefill(tokens, prefill).ok());
  ASSERT_TRUE(session_->KeepQueries(kKept, 8).ok());
  EXPECT_EQ(session_->Prefill(tokens, prefill).code(), StatusCode::kInvalidArgument);
  const std::span all(tokens);
  for (const int sequence : {2, 0}) ASSERT_TRUE(session_->Prefill(all.first(90), {}, sequence).ok());
  for (size_t i = 90; i < tokens.size(); i += 2) {
    const std::vector<SequenceTokens> parts = {{0, all.subspan(i, 2)}, {2, all.subspan(i, 1)}};
    ASSERT_TRUE(session_->DecodeTogether(parts).ok());
  }
  const AttentionWindow &expected = whole->window(), &kept = session_->window(0);
  ASSERT_EQ(kept.last_visible, expected.last_visible);
  ASSERT_EQ(kept.layers.size(), expected.layers.size());
  for (size_t i = 0; i < kept.layers.size(); ++i) {
    EXPECT_EQ(kept.layers[i].window, expected.layers[i].window);
    EXPECT_LT(RelativeError(kept.layers[i].q, expected.layers[i].q), kExactError);
  }
  EXPECT_EQ(session_->window(2).last_visible, (std::vector<uint32_t>{63, 71, 79, 87, 95, 103}));  // of 105 tokens
  PackOptions options;
  options.policy = Policy::kLocal;
  PackTimes times;
  EXPECT_TRUE(PackSession(*session_, options, &times, 0).has_value());
  // Taken back: the queries of what is left stay.
  const AttentionWindow before = session_->window(0);
  ASSERT_TRUE(session_->Truncate(100, 0).ok());
  EXPECT_EQ(session_->window(0).last_visible, (std::vector<uint32_t>{79, 87, 95}));
  for (size_t i = 0; i < before.layers.size(); ++i) {
    const std::vector<float>& left = session_->window(0).layers[i].q;
    ASSERT_EQ(left.size(), before.layers[i].q.size() / before.queries() * 3);
    EXPECT_TRUE(std::equal(left.begin(), left.end(), before.layers[i].q.begin()));
  }
  ASSERT_TRUE(session_->Truncate(70, 0).ok());
  EXPECT_TRUE(session_->window(0).empty());
  ASSERT_TRUE(session_->KeepQueries(0, 1).ok());
  EXPECT_TRUE(session_->window(2).empty());
}

INSTANTIATE_TEST_SUITE_P(Windows, TogetherTest, testing::Values(0, 32));

}  // namespace
}  // namespace qkvshare
