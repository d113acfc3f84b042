// qkvshare/llama.h: contexts that an application has, on tiny models.
#include "qkvshare/llama.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>

#include "base/hash.h"
#include "llama.h"
#include "tests/llama_app.h"

namespace qkvshare {
namespace {

TEST_F(LlamaApiTest, ACardIsReadAsBySessions) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_);
  const auto session = MakeSession(*model_, FusedOptions());
  ASSERT_TRUE(session->AttachCards({Place(PackCard(*sender_, 8))}).ok());
  Prefill(session.get(), suffix_);
  const auto context = Bound(app);
  EXPECT_TRUE(context->attention.info().fused) << context->attention.info().reason;
  for (const qkv_inject mode : {QKV_INJECT_AUTO, QKV_INJECT_FUSED, QKV_INJECT_RESTORE}) {
    const qkv::Injection done = Take(context->attention.Inject(1, card, mode));
    EXPECT_EQ(done.mode, mode == QKV_INJECT_RESTORE ? QKV_INJECT_RESTORE : QKV_INJECT_FUSED);
    EXPECT_EQ(done.reason, mode == QKV_INJECT_AUTO ? "the self-test passed" : "as asked for");
    EXPECT_EQ(done.tokens, 150u);
    llama_batch batch = llama_batch_init(32, 0, 1);
    for (size_t i = 0; i < suffix_.size(); ++i) {
      batch.token[i] = suffix_[i];
      batch.pos[i] = static_cast<llama_pos>(done.tokens + i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 1;
      batch.logits[i] = static_cast<int8_t>(i + 1 == suffix_.size());
      ++batch.n_tokens;
    }
    int32_t result = -1;
    EXPECT_TRUE(context->attention.Decode(batch, &result).ok());
    EXPECT_EQ(result, 0);
    llama_batch_free(batch);
    EXPECT_LT(RelativeError(context->Logits(), Logits(*session)), kPackedError) << mode;
    ASSERT_TRUE(context->attention.Detach(1).ok());
  }
}

TEST_F(LlamaApiTest, AttachDetachAttach) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_, 4);
  Context plain(app);
  std::vector<int32_t> tokens = suffix_;
  ASSERT_EQ(llama_decode(plain.llama.get(), llama_batch_get_one(tokens.data(), 20)), 0);
  const std::vector<float> without = plain.Logits();
  const auto context = Bound(app);
  std::vector<float> with;
  for (int i = 0; i < 3; ++i) {
    Take(context->attention.Inject(0, card));
    const std::vector<float> logits = context->LogitsAfter(suffix_);
    if (i > 0) {
      EXPECT_EQ(logits, with);
    }
    with = logits;
    ASSERT_TRUE(context->attention.Detach(0).ok());
    ASSERT_EQ(llama_decode(context->llama.get(), llama_batch_get_one(tokens.data(), 20)), 0);
    EXPECT_EQ(context->Logits(), without) << "without a card it is llama.cpp, to the bit";
    context->Empty();
  }
  EXPECT_GT(RelativeError(with, without), 0.1);
}

TEST_F(LlamaApiTest, ThreadsWithAContextEachShareACard) {
  const App app(Model());
  auto card = std::make_unique<qkv::Card>(CardOf(*sender_, 4));
  std::array<std::unique_ptr<Context>, 4> contexts;
  for (auto& context : contexts) {
    context = Bound(app);
    Take(context->attention.Inject(0, *card));
  }
  const std::vector<float> expected = contexts[0]->LogitsAfter(suffix_);
  contexts[0].reset();  // closed while the others use the card, which its owner gives up, too
  card.reset();
  std::vector<std::thread> threads;
  std::array<std::vector<float>, 4> logits;
  for (size_t i = 1; i < contexts.size(); ++i) {
    threads.emplace_back([&, i] {
      if (!contexts[i]->Decode(suffix_).ok()) return;
      logits[i] = contexts[i]->Logits();
      contexts[i].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 1; i < contexts.size(); ++i) EXPECT_EQ(logits[i], expected) << i;
}

TEST_F(LlamaApiTest, ParametersMayServeSeveralContexts) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_);
  const auto alone = Bound(app);
  Take(alone->attention.Inject(0, card));
  const std::vector<float> expected = alone->LogitsAfter(suffix_);
  llama_context_params params = Context::Params();
  using LlamaContext = std::unique_ptr<llama_context, decltype(&llama_free)>;
  auto first = std::make_unique<qkv::Attention>(Take(qkv::Attention::Create(app.model(), &params)));
  LlamaContext first_llama(llama_init_from_model(app.llama(), params), llama_free);
  qkv::Attention second = Take(qkv::Attention::Create(app.model(), &params));  // whose callback is the first one's
  const LlamaContext second_llama(llama_init_from_model(app.llama(), params), llama_free);
  ASSERT_TRUE(first->Bind(first_llama.get()).ok());
  Take(first->Inject(0, card));
  ASSERT_TRUE(second.Bind(second_llama.get()).ok());
  first_llama.reset();
  first.reset();
  Take(second.Inject(0, card));
  std::vector<int32_t> tokens = suffix_;
  const Status status = second.Decode(llama_batch_get_one(tokens.data(), static_cast<int32_t>(tokens.size())));
  ASSERT_TRUE(status.ok()) << status.message();
  const float* logits = llama_get_logits_ith(second_llama.get(), -1);
  EXPECT_EQ(std::vector<float>(logits, logits + expected.size()), expected);
}

TEST_F(LlamaApiTest, WrongCallsSayWhatIsWrongAndChangeNothing) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_);
  const auto context = Bound(app);
  Take(context->attention.Inject(0, card));
  const std::vector<float> expected = context->LogitsAfter(suffix_);
  const auto refused = [&](const Status& status, StatusCode code, const std::string& says) {
    Bad(status, code, says);
    EXPECT_EQ(llama_memory_seq_pos_max(llama_get_memory(context->llama.get()), 0), 169);
  };
  refused(context->Decode(SomeTokens(65)), StatusCode::kInvalidArgument, "at most 64 (n_ubatch)");
  std::vector<int32_t> token = {7};
  std::vector<llama_pos> position = {149};
  llama_batch early = llama_batch_get_one(token.data(), 1);
  early.pos = position.data();
  int32_t result = 0;
  refused(context->attention.Decode(early, &result), StatusCode::kInvalidArgument, "cards end at 150");
  EXPECT_EQ(result, -1);
  refused(context->attention.Inject(0, card).status(), StatusCode::kInvalidArgument, "sequence 0 is not empty");
  refused(context->attention.Inject(3, card).status(), StatusCode::kInvalidArgument, "there is no sequence 3");
  refused(context->attention.Inject(-1, card).status(), StatusCode::kInvalidArgument, "there is no sequence -1");
  refused(context->attention.Detach(3), StatusCode::kInvalidArgument, "there is no sequence 3");
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): what callers in C may pass
  refused(context->attention.Inject(1, card, static_cast<qkv_inject>(9)).status(), StatusCode::kInvalidArgument,
          "mode");
  refused(context->attention.Inject(1, {}).status(), StatusCode::kInvalidArgument, "there is no card");
  for (const qkv_inject mode : {QKV_INJECT_FUSED, QKV_INJECT_RESTORE}) {
    const qkv::PlacedCard overlap[] = {{&card, 10, 0}, {&card, 100, 0}};
    refused(context->attention.Inject(1, overlap, mode).status(), StatusCode::kInvalidArgument, "ends at 160");
    const qkv::PlacedCard longer[] = {{&card, 0, 151}};
    refused(context->attention.Inject(1, longer, mode).status(), StatusCode::kInvalidArgument, "151 tokens of a card");
    const qkv::PlacedCard far[] = {{&card, UINT32_MAX - 1, 0}};
    refused(context->attention.Inject(1, far, mode).status(), StatusCode::kInvalidArgument, "a card at position");
  }
  const qkv::PlacedCard many[] = {{&card}, {&card}, {&card}, {&card}};
  refused(context->attention.Inject(1, many, QKV_INJECT_RESTORE).status(), StatusCode::kOutOfRange, "too short");
  TinyModelSpec spec;
  spec.seed = 2;
  ASSERT_TRUE(WriteTinyModel(spec, Path("other.gguf")).ok());
  const App other(Path("other.gguf"));
  const auto elsewhere = Bound(other);
  Bad(elsewhere->attention.Inject(0, card).status(), StatusCode::kMismatch, "another model");
  Bad(qkv::BorrowModel(app.llama(), Path("none.gguf")).status(), StatusCode::kNotFound, "no model file");
  ASSERT_TRUE(WriteTinyModel({}, Path("half.gguf")).ok());
  Bad(qkv::BorrowModel(app.llama(), Path("half.gguf")).status(), StatusCode::kMismatch, "was not loaded from");
  // All is as it was.
  context->Empty();
  EXPECT_EQ(context->LogitsAfter(suffix_), expected);
}

TEST_F(LlamaApiTest, AContextIsBoundOnceWhileItIsEmpty) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_);
  Context context(app);
  EXPECT_STREQ(context.attention.info().reason, "there is no context yet");
  Bad(context.attention.Inject(0, card).status(), StatusCode::kInvalidArgument, "qkv_attention_bind");
  Bad(context.Decode(suffix_), StatusCode::kInvalidArgument, "qkv_attention_bind");
  Bad(context.attention.Detach(0), StatusCode::kInvalidArgument, "qkv_attention_bind");
  Bad(context.attention.PackMemory(0, suffix_).status(), StatusCode::kInvalidArgument, "qkv_attention_bind");
  std::vector<int32_t> tokens = suffix_;
  ASSERT_EQ(llama_decode(context.llama.get(), llama_batch_get_one(tokens.data(), 20)), 0);
  Bad(context.attention.Bind(context.llama.get()), StatusCode::kInvalidArgument, "not empty");
  context.Empty();
  Context other(app);
  Bad(context.attention.Bind(other.llama.get()), StatusCode::kInvalidArgument, "without this callback");
  ASSERT_TRUE(context.attention.Bind(context.llama.get()).ok());
  Bad(context.attention.Bind(context.llama.get()), StatusCode::kInvalidArgument, "a context already");
  Bad(context.attention.Bind(nullptr), StatusCode::kInvalidArgument, "context is NULL");
}

TEST_F(LlamaApiTest, ABorrowedModelIsAModelInAllElse) {
  const App app(Model());
  EXPECT_EQ(std::string(app.model().info().fingerprint), qkvshare::ToHex(model_->fingerprint()));
  qkv::SessionOptions options;
  options.context = 256;
  options.threads = 1;
  qkv::Session session = Take(qkv::Session::Create(app.model(), options));
  EXPECT_EQ(Take(session.Inject(CardOf(*sender_))).tokens, 150u);
  EXPECT_TRUE(session.Prefill(suffix_).ok());
}

TEST_F(LlamaApiTest, TheApplicationsCallbackSeesLlamaCppsNodes) {
  struct Seen {
    int asked = 0, attention = 0, others = 0;
  } seen;
  llama_context_params params = Context::Params();
  params.cb_eval_user_data = &seen;
  params.cb_eval = [](ggml_tensor* node, bool ask, void* data) {
    auto* s = static_cast<Seen*>(data);
    const bool wanted = node->op == GGML_OP_FLASH_ATTN_EXT;
    if (ask) {
      s->asked += static_cast<int>(wanted);
      return wanted;
    }
    ++(wanted ? s->attention : s->others);
    return true;
  };
  const App app(Model());
  const auto context = Bound(app, params);
  EXPECT_EQ(seen.asked, 0) << "what Bind decodes is not the application's";
  Take(context->attention.Inject(0, CardOf(*sender_), QKV_INJECT_FUSED));
  const std::vector<float> logits = context->LogitsAfter(suffix_);
  EXPECT_EQ(seen.asked, 2);
  EXPECT_EQ(seen.attention, 2);
  EXPECT_EQ(seen.others, 0);
  const auto quiet = Bound(app);
  Take(quiet->attention.Inject(0, CardOf(*sender_), QKV_INJECT_FUSED));
  EXPECT_EQ(quiet->LogitsAfter(suffix_), logits);
}

TEST_F(LlamaApiTest, WhatRulesAttachingOutIsSaidAndCardsAreRestored) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_);
  llama_context_params slow = Context::Params();
  slow.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context_params quantized = Context::Params();
  quantized.type_k = GGML_TYPE_Q8_0;
  const auto expected = Bound(app);
  Take(expected->attention.Inject(0, card, QKV_INJECT_RESTORE));
  const std::vector<float> logits = expected->LogitsAfter(suffix_);
  for (const auto& [params, says] : {std::pair(slow, "flash attention"), std::pair(quantized, "type f16")}) {
    const auto context = Bound(app, params);
    const std::string reason = context->attention.info().reason;
    EXPECT_FALSE(context->attention.info().fused);
    EXPECT_NE(reason.find(says), std::string::npos) << reason;
    Bad(context->attention.Inject(0, card, QKV_INJECT_FUSED).status(), StatusCode::kUnsupported, reason);
    const qkv::Injection done = Take(context->attention.Inject(0, card));
    EXPECT_EQ(done.mode, QKV_INJECT_RESTORE);
    EXPECT_EQ(done.reason, reason);
    EXPECT_LT(RelativeError(context->LogitsAfter(suffix_), logits), kPackedError) << says;
  }
  llama_context_params streams = Context::Params();
  streams.kv_unified = false;
  Context context(app, streams);
  Bad(context.attention.Bind(context.llama.get()), StatusCode::kUnsupported, "kv_unified = true");
  EXPECT_TRUE(context.Decode(suffix_).code() == StatusCode::kInvalidArgument) << "it is not bound";
  llama_context_params embeddings = Context::Params();
  embeddings.type_k = GGML_TYPE_F32;
  Context wide(app, embeddings);
  Bad(wide.attention.Bind(wide.llama.get()), StatusCode::kUnsupported, "cache type f32");
}

// Two cards that know nothing of each other, with a gap between them.
TEST_F(LlamaApiTest, CardsGoWhereTheyAreToldTo) {
  const App app(Model());
  const qkv::Card first = CardOf(*sender_);
  const auto other = MakeSession(*model_);
  Prefill(other.get(), SomeTokens(90, 17));
  const qkv::Card second = CardOf(*other);
  const qkv::PlacedCard cards[] = {{&first, QKV_NEXT, 100}, {&second, 130, 0}, {&first, QKV_NEXT, 40}};
  const auto fused = Bound(app);
  const auto restored = Bound(app);
  EXPECT_EQ(Take(fused->attention.Inject(0, cards, QKV_INJECT_FUSED)).tokens, 260u);
  EXPECT_EQ(Take(restored->attention.Inject(0, cards, QKV_INJECT_RESTORE)).tokens, 260u);
  EXPECT_LT(RelativeError(fused->LogitsAfter(suffix_), restored->LogitsAfter(suffix_)), kPackedError);
}

TEST_F(LlamaApiTest, TokensOfASequenceBecomeACard) {
  const App app(Model());
  const auto context = Bound(app);
  EXPECT_TRUE(context->Decode(SomeTokens(60)).ok());
  const std::vector<int32_t> tokens = SomeTokens(60);
  const qkv::Card card = Take(qkv::Card::FromBytes(Take(context->attention.PackMemory(0, tokens))));
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), card.token_ids().begin(), card.token_ids().end()));
  const auto bad = [&](std::span<const int32_t> given, const std::string& says, int sequence = 0) {
    Bad(context->attention.PackMemory(sequence, given).status(), StatusCode::kInvalidArgument, says);
  };
  bad(SomeTokens(59), "59 tokens from position 0, but the sequence ends at 59");
  bad(SomeTokens(61), "61 tokens");
  bad({}, "nothing to pack");
  bad(SomeTokens(60), "the sequence is empty", 1);
  bad(SomeTokens(60), "there is no sequence", 7);
  bad(std::vector<int32_t>(60, 1 << 30), "vocabulary");
  llama_memory_seq_rm(llama_get_memory(context->llama.get()), 0, 10, 20);
  bad(tokens, "holds 50");
}

TEST_F(LlamaApiTest, TokensAfterAttachedCardsBecomeADeltaCard) {
  const App app(Model());
  const auto context = Bound(app);
  EXPECT_TRUE(context->Decode(SomeTokens(60)).ok());
  const qkv::Card card = Take(qkv::Card::FromBytes(Take(context->attention.PackMemory(0, SomeTokens(60)))));
  // At 4 bits a single one of these 20 tokens makes an error of 0.13 in what this random model says next.
  for (const auto& [bits, bound] : {std::pair(4.0, 0.2), std::pair(8.0, kPackedError)}) {
    SCOPED_TRACE(bits);
    context->Empty();
    EXPECT_TRUE(context->attention.Detach(0).ok());
    Take(context->attention.Inject(0, card, QKV_INJECT_FUSED));
    EXPECT_TRUE(context->Decode(suffix_).ok());
    qkv::PackOptions options;
    options.bits = bits;
    const qkv::Card delta = Take(qkv::Card::FromBytes(Take(context->attention.PackMemory(0, suffix_, options))));
    EXPECT_EQ(delta.positions().front(), 60);
    const std::vector<float> expected = context->LogitsAfter({9});
    const qkv::PlacedCard alone[] = {{&delta}};
    Bad(context->attention.Inject(1, alone).status(), StatusCode::kMismatch, "continues card");
    const qkv::PlacedCard far[] = {{&delta, 1U << 31, 0}};
    Bad(context->attention.Inject(1, far).status(), StatusCode::kInvalidArgument, "a card at position 2147483648");
    const qkv::PlacedCard both[] = {{&card}, {&delta}};
    for (const qkv_inject mode : {QKV_INJECT_FUSED, QKV_INJECT_RESTORE}) {
      const auto last = Bound(app);
      EXPECT_EQ(Take(last->attention.Inject(0, both, mode)).tokens, 80u);
      EXPECT_LT(RelativeError(last->LogitsAfter({9}), expected), bound);
    }
  }
}

TEST_F(LlamaApiTest, RestoredTokensAreNotPackedAgain) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_);
  const auto context = Bound(app);
  Take(context->attention.Inject(0, card, QKV_INJECT_RESTORE));
  EXPECT_TRUE(context->Decode({9}).ok());
  Bad(context->attention.PackMemory(0, SomeTokens(151)).status(), StatusCode::kUnsupported, "quantized twice");
  context->Empty();
  EXPECT_TRUE(context->attention.Detach(0).ok());
  EXPECT_TRUE(context->Decode(suffix_).ok());
  EXPECT_TRUE(context->attention.PackMemory(0, suffix_));
}

// What a card cannot tell of: places that are not where the card before ends.
TEST_F(LlamaApiTest, WhatFollowsAGapIsNotPacked) {
  const App app(Model());
  const qkv::Card card = CardOf(*sender_);
  const auto context = Bound(app);
  for (const uint32_t offset : {0U, 10U}) {
    const qkv::PlacedCard cards[] = {{&card, offset, 40}, {&card, 50, 20}};
    Take(context->attention.Inject(0, cards, QKV_INJECT_FUSED));
    EXPECT_TRUE(context->Decode(suffix_).ok());
    Bad(context->attention.PackMemory(0, suffix_).status(), StatusCode::kUnsupported, "gaps between the cards");
    context->Empty();
    EXPECT_TRUE(context->attention.Detach(0).ok());
  }
  const qkv::PlacedCard cards[] = {{&card, 0, 40}, {&card, 40, 20}};
  Take(context->attention.Inject(0, cards, QKV_INJECT_FUSED));
  EXPECT_TRUE(context->Decode(suffix_).ok());
  EXPECT_TRUE(context->attention.PackMemory(0, suffix_));
}

TEST_F(LlamaApiTest, SlidingWindowsTakeAnEmptySequenceMore) {
  TinyModelSpec spec;
  spec.architecture = "gemma3";
  spec.sliding_window = 40;
  Use(spec);
  const App app(Model());
  const qkv::Card card = CardOf(*sender_);
  llama_context_params params = Context::Params();
  params.n_seq_max = 1;
  const auto narrow = Bound(app, params);
  EXPECT_TRUE(narrow->Decode(SomeTokens(60)).ok());
  Bad(narrow->attention.PackMemory(0, SomeTokens(60)).status(), StatusCode::kUnsupported, "n_seq_max");
  const auto context = Bound(app);
  EXPECT_TRUE(context->Decode(SomeTokens(60)).ok());
  EXPECT_TRUE(context->attention.PackMemory(0, SomeTokens(60)));
  context->Empty();
  Take(context->attention.Inject(0, card, QKV_INJECT_FUSED));
  const auto restored = Bound(app);
  Take(restored->attention.Inject(0, card, QKV_INJECT_RESTORE));
  EXPECT_LT(RelativeError(context->LogitsAfter(suffix_), restored->LogitsAfter(suffix_)), kPackedError);
  params = Context::Params();
  params.swa_full = false;
  Context small(app, params);
  Bad(small.attention.Bind(small.llama.get()), StatusCode::kUnsupported, "swa_full = true");
}

}  // namespace
}  // namespace qkvshare
