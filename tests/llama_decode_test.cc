// Decoding over cards in an application's own llama_context: several sequences, copies, and what must be refused.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ggml.h"
#include "llama.h"
#include "tests/llama_app.h"

namespace qkvshare {
namespace {

class LlamaDecodeTest : public LlamaApiTest {
 protected:
  void ExpectIndependentSequences(double bits);
};

void LlamaDecodeTest::ExpectIndependentSequences(double bits) {
  const App app(Model());
  const qkv::Card first = CardOf(*sender_, bits);
  const auto other = MakeSession(*model_);
  Prefill(other.get(), SomeTokens(90, 17));
  const qkv::Card second = CardOf(*other);
  enum class Neighbour { kStays, kLosesItsCard, kIsAnother };
  std::vector<std::vector<float>> expected;
  for (const Neighbour neighbour : {Neighbour::kStays, Neighbour::kLosesItsCard, Neighbour::kIsAnother}) {
    const auto context = Bound(app);
    Take(context->attention.Inject(0, first, QKV_INJECT_FUSED));
    Take(context->attention.Inject(1, second, QKV_INJECT_FUSED));
    context->DecodeTogether({{0, 150, suffix_}, {1, 90, SomeTokens(12, 40)}, {2, 0, SomeTokens(9, 60)}});
    if (neighbour != Neighbour::kStays) {
      EXPECT_TRUE(context->attention.Detach(1).ok());
    }
    if (neighbour == Neighbour::kIsAnother) {
      Take(context->attention.Inject(1, first, QKV_INJECT_FUSED));
      context->DecodeTogether({{1, 150, SomeTokens(12, 80)}});
    }
    const uint32_t next = neighbour == Neighbour::kIsAnother ? 162 : 102;
    const auto logits = context->DecodeTogether({{0, 170, {7}}, {1, next, {8}}, {2, 9, {9}}});
    if (neighbour == Neighbour::kStays) {
      expected = logits;
      continue;
    }
    EXPECT_EQ(logits[0], expected[0]);
    EXPECT_GT(RelativeError(logits[1], expected[1]), 0.1);
    EXPECT_EQ(logits[2], expected[2]);
  }
  const auto alone = Bound(app);
  Take(alone->attention.Inject(0, first, QKV_INJECT_FUSED));
  alone->LogitsAfter(suffix_);
  EXPECT_LT(RelativeError(expected[0], alone->LogitsAfter({7})), 1e-3);
}

// Whatever becomes of a neighbour, to the bit; also where it gets a card that this sequence has, whose tiles they
// share.
TEST_F(LlamaDecodeTest, SequencesOfOneCallDoNotChangeEachOther) {
  for (const double bits : {4.0, 16.0}) ExpectIndependentSequences(bits);
}

// A copy goes on from the cards too, or not at all.
TEST_F(LlamaDecodeTest, CopiesOfASequenceHaveItsCards) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_, 4);
  const auto context = Bound(app);
  Take(context->attention.Inject(0, card, QKV_INJECT_FUSED));
  context->DecodeTogether({{0, 150, suffix_}});
  ASSERT_TRUE(context->attention.Copy(0, 1).ok());
  Bad(context->attention.Copy(0, 1), StatusCode::kInvalidArgument, "sequence 1 is not empty");
  Bad(context->attention.Copy(7, 1), StatusCode::kInvalidArgument, "no sequence 7");
  const auto logits = context->DecodeTogether({{0, 170, {7}}, {1, 170, {7}}});
  EXPECT_EQ(logits[0], logits[1]);
  ASSERT_TRUE(context->attention.Detach(0).ok());
  const std::vector<float> later = context->DecodeTogether({{1, 171, {8}}}).front();
  ASSERT_TRUE(context->attention.Detach(1).ok());
  Take(context->attention.Inject(0, card, QKV_INJECT_FUSED));
  context->DecodeTogether({{0, 150, suffix_}});
  context->DecodeTogether({{0, 170, {7}}, {2, 0, {9}}});
  EXPECT_LT(RelativeError(context->DecodeTogether({{0, 171, {8}}}).front(), later), 1e-5);
}

TEST_F(LlamaDecodeTest, RowsWithoutTheirCardsAreRefused) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_, 4);
  const auto context = Bound(app);
  llama_memory_t memory = llama_get_memory(context->llama.get());
  const auto refused = [&](int sequence, llama_pos next, const std::string& first) {
    Bad(context->DecodeOne(7, sequence, next), StatusCode::kInvalidArgument,
        "sequence " + std::to_string(sequence) + " has tokens from position " + first + " on");
  };
  Take(context->attention.Inject(0, card, QKV_INJECT_FUSED));
  context->DecodeTogether({{0, 150, suffix_}});
  llama_memory_seq_cp(memory, 0, 2, -1, -1);
  refused(2, 170, "150");
  ASSERT_TRUE(context->attention.Detach(0).ok());
  refused(2, 170, "150");  // also when nobody has the cards any more
  ASSERT_TRUE(context->attention.Detach(2).ok());
  // Rows of another sequence, after cards of its own.
  context->DecodeTogether({{1, 0, SomeTokens(100)}});
  context->DecodeTogether({{1, 100, SomeTokens(60)}});
  Take(context->attention.Inject(0, card, QKV_INJECT_FUSED));
  llama_memory_seq_cp(memory, 1, 0, 150, -1);
  refused(0, 160, "150");
  context->Empty(0);
  // The card's own text once more, without its cards.
  llama_memory_seq_cp(memory, 1, 0, 0, 150);
  refused(0, 150, "0");
  context->Empty(0);
  context->DecodeTogether({{0, 150, suffix_}, {1, 160, {7}}});
  // A sequence may begin where it likes, even where another's cards end.
  ASSERT_TRUE(context->attention.Detach(1).ok());
  for (llama_pos position = 150; position < 153; ++position) {
    const Status status = context->DecodeOne(7, 1, position);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_F(LlamaDecodeTest, WrongSequencesAreRefused) {
  const App app(Model());
  const auto context = Bound(app);
  for (const bool with_card : {false, true}) {
    if (with_card) Take(context->attention.Inject(0, CardOf(*sender_, 4), QKV_INJECT_FUSED));
    for (const int sequence : {-1, 3, 300})
      Bad(context->DecodeOne(7, sequence, 0), StatusCode::kInvalidArgument, "there is no sequence");
  }
  context->LogitsAfter(suffix_);
}

// Attention that did not go over the cards, in whatever layer, is not taken for an answer.
TEST_F(LlamaDecodeTest, ACallThatIsCutShortIsTakenBack) {
  bool stop = false;
  llama_context_params params = Context::Params();
  params.cb_eval_user_data = &stop;
  params.cb_eval = [](ggml_tensor* node, bool ask, void* data) {
    return ask ? node->op == GGML_OP_FLASH_ATTN_EXT : !*static_cast<bool*>(data);
  };
  const App app(Model());
  const auto context = Bound(app, params);
  Take(context->attention.Inject(0, CardOf(*sender_, 4), QKV_INJECT_FUSED));
  const std::vector<float> expected = context->LogitsAfter(suffix_);
  context->Empty();
  stop = true;
  Bad(context->Decode(suffix_), StatusCode::kInternal, "computed attention 1 times for 2 layers");
  EXPECT_EQ(llama_memory_seq_pos_max(llama_get_memory(context->llama.get()), 0), -1);
  stop = false;
  EXPECT_EQ(context->LogitsAfter(suffix_), expected);
}

// A node with ALiBi, as models with it have.
TEST_F(LlamaDecodeTest, WhatAttentionOverCardsCannotDoIsNamed) {
  float max_bias = 0;
  llama_context_params params = Context::Params();
  params.cb_eval_user_data = &max_bias;
  params.cb_eval = [](ggml_tensor* node, bool ask, void* data) {
    if (ask && node->op == GGML_OP_FLASH_ATTN_EXT) std::memcpy(&node->op_params[1], data, sizeof(float));
    return false;
  };
  const App app(Model());
  const auto context = Bound(app, params);
  Take(context->attention.Inject(0, CardOf(*sender_, 4), QKV_INJECT_FUSED));
  const std::vector<float> expected = context->LogitsAfter(suffix_);
  context->Empty();
  max_bias = 8;
  Bad(context->Decode(suffix_), StatusCode::kUnsupported, "attention of layer 0 uses ALiBi");
  EXPECT_EQ(llama_memory_seq_pos_max(llama_get_memory(context->llama.get()), 0), -1);
  max_bias = 0;
  EXPECT_EQ(context->LogitsAfter(suffix_), expected);
}

TEST_F(LlamaDecodeTest, ReceiversInTurnAreAlikeAndTakeNoMoreMemory) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_, 4);
  const auto context = Bound(app);
  const auto receive = [&](int sequence, uint32_t offset) {
    const qkv::PlacedCard placed{&card, offset, 0};
    Take(context->attention.Inject(sequence, {&placed, 1}, QKV_INJECT_FUSED));
    std::vector<float> logits = context->DecodeTogether({{sequence, offset + 150, suffix_}}).front();
    EXPECT_TRUE(context->attention.Detach(sequence).ok());
    return logits;
  };
  const std::vector<float> expected = receive(0, 0);
  size_t before = 0;
  for (uint32_t round = 0; round < 200; ++round) {
    ASSERT_EQ(receive(static_cast<int>(round % 2), 0), expected) << round;
    receive(2, 1 + round);
    if (round == 10) before = mallinfo2().uordblks;
  }
  EXPECT_LT(mallinfo2().uordblks, before + (size_t{32} << 10));
}

TEST_F(LlamaDecodeTest, LlamaDecodeItselfWithCardsAttachedIsNoticed) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_);
  const auto context = Bound(app);
  Take(context->attention.Inject(0, card));
  const std::vector<float> expected = context->LogitsAfter(suffix_);
  std::vector<int32_t> token = {7};
  ASSERT_EQ(llama_decode(context->llama.get(), llama_batch_get_one(token.data(), 1)), 0);
  const std::vector<float> logits = context->Logits();
  EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); }));
  for (int i = 0; i < 2; ++i)
    Bad(context->Decode({8}), StatusCode::kInvalidArgument, "remove the tokens of sequence 0 from position 150 on");
  context->Empty();
  EXPECT_EQ(context->LogitsAfter(suffix_), expected);

  // In a sequence without cards it is noticed, too.
  llama_batch batch = llama_batch_get_one(token.data(), 1);
  std::vector<int32_t> counts = {1};
  std::vector<llama_seq_id> ids = {1};
  llama_seq_id* list[] = {ids.data()};
  batch.n_seq_id = counts.data();
  batch.seq_id = list;
  ASSERT_EQ(llama_decode(context->llama.get(), batch), 0);
  EXPECT_TRUE(std::isnan(context->Logits().front()));
  // Nobody knows which tokens it was: all that is not a card's has to go.
  Bad(context->Decode({8}), StatusCode::kInvalidArgument, "remove the tokens of sequence 0 from position 150 on");
  context->Empty(0);
  Bad(context->Decode({8}), StatusCode::kInvalidArgument, "remove the tokens of sequence 1 from position 0 on");
  context->Empty(1);
  EXPECT_EQ(context->LogitsAfter(suffix_), expected);
}

}  // namespace
}  // namespace qkvshare
