// Receivers' instructions as queries over a sender's cache, on tiny models.
#include <gtest/gtest.h>

#include "runtime/inject.h"
#include "runtime/probe_queries.h"
#include "tests/fused_fixture.h"

namespace qkvshare {
namespace {

using Instructions = std::vector<std::vector<int32_t>>;

class ProbeTest : public FusedFixture {
 protected:
  void SetUp() override {
    FusedFixture::SetUp();
    Read(sender_.get(), SomeTokens(100, 60));
  }
  static void Read(Session* session, const std::vector<int32_t>& tokens, int sequence = 0) {
    PrefillOptions prefill;
    prefill.window = kWindowTokens;
    prefill.window_stride = kWindowStride;
    const Status status = session->Prefill(tokens, prefill, sequence);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  static Card Pack(const Session& session, const AttentionWindow& probe) {
    PackOptions options;
    options.policy = Policy::kTopology;
    options.code_bits = 3;
    options.features = Take(ParseFeatures("default,+probe"));
    options.probe = probe;
    PackTimes times;
    return Take(Card::FromBytes(Take(PackSession(session, options, &times)).Bytes()));
  }
  static std::vector<uint8_t> RowsOf(const Session& session, int sequence = 0) {
    const KvState state = Take(session.TakeKv(sequence));
    return {state.bytes().begin(), state.bytes().end()};
  }
  static void ExpectSame(const AttentionWindow& a, const AttentionWindow& b) {
    EXPECT_EQ(a.last_visible, b.last_visible);
    ASSERT_EQ(a.layers.size(), b.layers.size());
    for (size_t layer = 0; layer < a.layers.size(); ++layer) {
      EXPECT_EQ(a.layers[layer].window, b.layers[layer].window);
      EXPECT_EQ(a.layers[layer].q, b.layers[layer].q);
    }
  }

  const Instructions first_ = {SomeTokens(40, 11)}, second_ = {SomeTokens(9, 200)};
};

TEST_F(ProbeTest, ThePlanChangesWithTheInstruction) {
  const Card first = Pack(*sender_, Take(ProbeWindow(sender_.get(), first_)));
  EXPECT_EQ(first.info().features, (std::vector<std::string>{"attention", "probe"}));
  const Card second = Pack(*sender_, Take(ProbeWindow(sender_.get(), second_)));
  EXPECT_NE(second.plan().level_of_token, first.plan().level_of_token);
  const Card again = Pack(*sender_, Take(ProbeWindow(sender_.get(), first_)));
  EXPECT_EQ(again.plan().level_of_token, first.plan().level_of_token);
}

TEST_F(ProbeTest, TheSessionStaysAsItWas) {
  const std::vector<int32_t> tokens = sender_->tokens();
  const std::vector<uint8_t> rows = RowsOf(*sender_);
  const AttentionWindow window = sender_->window();
  const auto plain = MakeSession(*model_);
  Prefill(plain.get(), prefix_);
  Read(plain.get(), SomeTokens(100, 60));
  Take(ProbeWindow(sender_.get(), first_));
  EXPECT_EQ(sender_->tokens(), tokens);
  EXPECT_EQ(RowsOf(*sender_), rows);
  ASSERT_FALSE(window.empty());
  ExpectSame(sender_->window(), window);
  // The logits are another token's: who goes on decodes the last one again.
  EXPECT_EQ(sender_->logits(), nullptr);
  EXPECT_EQ(Generate(sender_.get(), {}).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(sender_->Truncate(tokens.size() - 1).ok());
  Prefill(sender_.get(), {tokens.back()});
  EXPECT_EQ(Greedy(sender_.get(), 12).tokens, Greedy(plain.get(), 12).tokens);
}

// Each instruction's queries are those of a receiver that reads it after the same tokens.
TEST_F(ProbeTest, QueriesAreThoseOfTheReceivers) {
  for (const char* architecture : {"llama", "gemma3"}) {
    SCOPED_TRACE(architecture);
    TinyModelSpec spec;
    spec.architecture = architecture;
    spec.sliding_window = spec.architecture == "llama" ? 0 : 40;
    Use(spec);
    AttentionWindow expected;
    for (const auto& [tokens, stride] : {std::pair{first_[0], 3u}, {second_[0], 1u}}) {
      const auto receiver = MakeSession(*model_);
      Prefill(receiver.get(), prefix_);
      PrefillOptions prefill;
      prefill.window = 64;
      prefill.window_stride = stride;
      ASSERT_TRUE(receiver->Prefill(tokens, prefill).ok());
      AppendWindow(receiver->window(), &expected);
    }
    const Instructions both = {first_[0], second_[0]};
    const AttentionWindow probe = Take(ProbeWindow(sender_.get(), both));
    ExpectSame(probe, expected);
    EXPECT_EQ(probe.queries(), 14u + 9u);
    EXPECT_EQ(probe.last_visible.back(), 158u);
    EXPECT_EQ(probe.end, 150u);  // of these tokens; a window has moved on by so many more
  }
}

TEST_F(ProbeTest, LooksAtWhatFollowsAttachedCards) {
  const auto middle = MakeSession(*model_, FusedOptions());
  ASSERT_TRUE(middle->AttachCards({Place(PackCard(*sender_, 8))}).ok());
  EXPECT_EQ(ProbeWindow(middle.get(), first_).status().code(), StatusCode::kInvalidArgument);  // nothing to pack
  Read(middle.get(), SomeTokens(80, 3));
  const AttentionWindow probe = Take(ProbeWindow(middle.get(), first_));
  EXPECT_EQ(probe.end, 80u);
  EXPECT_EQ(probe.last_visible.back(), 119u);
  const Card delta = Pack(*middle, probe), other = Pack(*middle, Take(ProbeWindow(middle.get(), second_)));
  EXPECT_EQ(delta.first_token(), 250u);
  EXPECT_NE(other.plan().level_of_token, delta.plan().level_of_token);
}

TEST_F(ProbeTest, OtherSequencesAreLeftAlone) {
  SessionOptions options = SmallOptions();
  options.sequences = 2;
  const auto session = MakeSession(*model_, options);
  Read(session.get(), prefix_, 1);
  Read(session.get(), SomeTokens(50, 60), 0);
  const std::vector<uint8_t> rows = RowsOf(*session, 1);
  EXPECT_EQ(Take(ProbeWindow(session.get(), second_, 1)).end, 150u);
  EXPECT_EQ(RowsOf(*session, 1), rows);
  EXPECT_EQ(session->tokens(0).size(), 50u);
  EXPECT_EQ(ProbeWindow(session.get(), second_, 2).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ProbeTest, WhatCannotBeReadChangesNothing) {
  const std::vector<float> logits = Logits(*sender_);
  const auto refused = [&](const Instructions& instructions, StatusCode code, const std::string& says) {
    const Status status = ProbeWindow(sender_.get(), instructions).status();
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
  };
  refused({}, StatusCode::kInvalidArgument, "no instructions");
  refused({{5}, {}}, StatusCode::kInvalidArgument, "an instruction has no tokens");
  refused({{5}, SomeTokens(263)}, StatusCode::kOutOfRange, "513 tokens needed, 512 available");
  refused({{1000000}}, StatusCode::kInvalidArgument, "not in the model's vocabulary");
  EXPECT_EQ(sender_->tokens().size(), 250u);
  EXPECT_FALSE(sender_->window().empty());
  EXPECT_EQ(Logits(*sender_), logits);
  // Found on the way: what was read is taken back.
  refused({{5, 6}, {1000000}}, StatusCode::kInvalidArgument, "not in the model's vocabulary");
  sender_->Cancel();
  refused(first_, StatusCode::kCancelled, "");
  EXPECT_EQ(sender_->tokens().size(), 250u);
  EXPECT_FALSE(sender_->window().empty());
  sender_->ResetCancel();
  EXPECT_EQ(Take(ProbeWindow(sender_.get(), {{first_[0], SomeTokens(262)}})).queries(), 14u + 16u);  // just fits
  SessionOptions options = SmallOptions();
  options.flash_attention = false;
  const auto plain = MakeSession(*model_, options);
  Prefill(plain.get(), suffix_);
  EXPECT_EQ(ProbeWindow(plain.get(), first_).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(plain->tokens(), suffix_);
}

}  // namespace
}  // namespace qkvshare
