// Hand-overs from one session to another: what the receiver gets, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <tuple>

#include "card/card_test_util.h"
#include "runtime/prompt.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class HandoverTest : public SessionTest {
 protected:
  // The sender prefills `prefix`; the receiver restores an exact card of it.
  static void HandOver(const Model& model, const std::vector<int32_t>& prefix, double bits, Session* receiver) {
    const auto sender = MakeSession(model);
    Prefill(sender.get(), prefix);
    const Card card = PackCard(*sender, bits);
    const Status status = Restore(card, card.tokens(), receiver);
    ASSERT_TRUE(status.ok()) << status.message();
  }
};

struct Shape {
  const char* architecture;
  int heads, kv_heads, key_dim, value_dim;
  int window = 0;
};

class ExactHandoverTest : public HandoverTest, public testing::WithParamInterface<Shape> {};

TEST_P(ExactHandoverTest, GreedyOutputIsThatOfPrefillingTheSameTokensInTheSameSplit) {
  TinyModelSpec spec;
  spec.architecture = GetParam().architecture;
  spec.heads = GetParam().heads;
  spec.kv_heads = GetParam().kv_heads;
  spec.key_dim = GetParam().key_dim;
  spec.value_dim = GetParam().value_dim;
  spec.sliding_window = GetParam().window;
  const auto model = LoadTiny(spec);
  const std::vector<int32_t> prefix = SomeTokens(150);
  const std::vector<int32_t> suffix = SomeTokens(20, 3);

  const auto plain = MakeSession(*model);
  Prefill(plain.get(), prefix);
  Prefill(plain.get(), suffix);
  const std::vector<float> expected_logits = Logits(*plain);
  const Generation expected = Greedy(plain.get(), 24);

  const auto receiver = MakeSession(*model);
  HandOver(*model, prefix, 16, receiver.get());
  EXPECT_EQ(receiver->logits(), nullptr);
  Prefill(receiver.get(), suffix);
  EXPECT_EQ(Logits(*receiver), expected_logits);  // to the bit: the rows are the same bytes
  EXPECT_EQ(Greedy(receiver.get(), 24).tokens, expected.tokens);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExactHandoverTest,
                         testing::Values(Shape{"llama", 4, 2, 64, 0}, Shape{"llama", 4, 4, 72, 0},
                                         Shape{"llama", 4, 1, 80, 0}, Shape{"qwen2", 4, 2, 96, 0},
                                         Shape{"qwen2", 2, 1, 128, 0}, Shape{"llama", 2, 1, 256, 0},
                                         Shape{"plamo3", 4, 2, 96, 64}, Shape{"gemma3", 4, 1, 256, 0, 16},
                                         Shape{"plamo3", 4, 2, 96, 64, 40}));

TEST_F(HandoverTest, FourBitsLoseLessThanLlamasOwnFourBitCacheAndEightBitsFarLess) {
  TinyModelSpec spec;
  spec.architecture = "qwen2";  // with key outliers
  const auto model = LoadTiny(spec);
  const std::vector<int32_t> prefix = SomeTokens(200);
  const std::vector<int32_t> suffix = SomeTokens(20, 3);
  std::vector<std::vector<float>> logits;
  for (const double bits : {16.0, 8.0, 4.0}) {
    const auto receiver = MakeSession(*model);
    HandOver(*model, prefix, bits, receiver.get());
    Prefill(receiver.get(), suffix);
    logits.push_back(Logits(*receiver));
  }
  SessionOptions q4_options = SmallOptions();
  q4_options.cache_type_k = q4_options.cache_type_v = CacheType::kQ4_0;
  const auto q4 = MakeSession(*model, q4_options);
  Prefill(q4.get(), prefix);
  Prefill(q4.get(), suffix);
  logits.push_back(Logits(*q4));
  const auto rms = [&](size_t i) {
    double sum = 0;
    for (size_t t = 0; t < logits[0].size(); ++t) sum += std::pow(logits[i][t] - logits[0][t], 2);
    return std::sqrt(sum / static_cast<double>(logits[0].size()));
  };
  const double card8 = rms(1), card4 = rms(2), llama_q4_0 = rms(3);
  EXPECT_GT(card8, 0);
  EXPECT_LT(card8, 0.1 * card4);  // steps 16 times as fine
  EXPECT_LT(card4, llama_q4_0);   // at 4.25 and 4.5 bits
}

TEST_F(HandoverTest, CardsOfEveryLengthAroundATileHoldTheirTokens) {
  const auto model = LoadTiny({});
  for (const size_t tokens : {1, 2, 4, 5, 15, 16, 17, 20, 21, 33, 63, 65}) {
    const std::vector<int32_t> prefix = SomeTokens(tokens);
    const auto sender = MakeSession(*model);
    Prefill(sender.get(), prefix);
    const Card card = PackCard(*sender, 4);
    EXPECT_EQ(card.tokens(), tokens);
    EXPECT_TRUE(std::equal(prefix.begin(), prefix.end(), card.token_ids().begin(), card.token_ids().end()));
    const auto receiver = MakeSession(*model);
    ASSERT_TRUE(Restore(card, tokens, receiver.get()).ok());
    EXPECT_EQ(receiver->tokens(), prefix);
    EXPECT_EQ(Take(receiver->TakeKv()).tokens(), tokens);
    Prefill(receiver.get(), {7});
    EXPECT_EQ(receiver->tokens().size(), tokens + 1);
  }
}

TEST_F(HandoverTest, AnyPrefixOfACardCanBeRestored) {
  const auto model = LoadTiny({});
  const std::vector<int32_t> prefix = SomeTokens(70);
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), prefix);
  const Card card = PackCard(*sender, 16);
  for (const size_t count : {1, 5, 16, 40, 69}) {
    const auto receiver = MakeSession(*model);
    ASSERT_TRUE(Restore(card, count, receiver.get()).ok());
    EXPECT_EQ(receiver->tokens(), std::vector<int32_t>(prefix.begin(), prefix.begin() + static_cast<ptrdiff_t>(count)));
    const KvState whole_state = Take(sender->TakeKv());
    const KvState part_state = Take(receiver->TakeKv());
    const KvView whole = whole_state.view();
    const KvView part = part_state.view();
    for (size_t layer = 0; layer < whole.layers.size(); ++layer) {
      const LayerRows &a = whole.layers[layer], &b = part.layers[layer];
      EXPECT_TRUE(std::equal(b.keys, b.keys + count * b.shape.row_values(Side::kKeys), a.keys));
      EXPECT_TRUE(std::equal(b.values, b.values + count * b.shape.row_values(Side::kValues), a.values));
    }
  }
  const auto receiver = MakeSession(*model);
  EXPECT_EQ(Restore(card, 71, receiver.get()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Restore(card, 0, receiver.get()).code(), StatusCode::kInvalidArgument);
}

TEST_F(HandoverTest, ACardLongerThanTheContextIsRefusedWithNeededAndAvailable) {
  const auto model = LoadTiny({});
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(300));
  const Card card = PackCard(*sender, 4);
  SessionOptions options = SmallOptions();
  options.context = 256;
  const auto receiver = MakeSession(*model, options);
  Prefill(receiver.get(), {1, 2, 3});
  const Status status = Restore(card, 300, receiver.get());
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("300 tokens needed, 256 available"), std::string::npos) << status.message();
  EXPECT_EQ(receiver->tokens(), (std::vector<int32_t>{1, 2, 3}));  // as it was
}

TEST_F(HandoverTest, AnotherModelOfTheSameShapesIsRefusedAndTheSessionStaysAsItWas) {
  TinyModelSpec other;
  other.seed = 2;
  const auto model = LoadTiny({});
  const auto stranger = LoadTiny(other, "other.gguf");
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(40));
  const Card card = PackCard(*sender, 4);
  const auto receiver = MakeSession(*stranger);
  const std::vector<int32_t> before = SomeTokens(10);
  Prefill(receiver.get(), before);
  const std::vector<float> logits = Logits(*receiver);
  const Status status = Restore(card, 40, receiver.get());
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_NE(status.message().find("another model"), std::string::npos) << status.message();
  EXPECT_EQ(receiver->tokens(), before);
  EXPECT_EQ(Logits(*receiver), logits);
  EXPECT_EQ(Take(receiver->TakeKv()).tokens(), before.size());
}

TEST_F(HandoverTest, ARenamedModelFileIsTheSameModel) {
  const auto model = LoadTiny({});
  std::filesystem::copy_file(Path("model.gguf"), Path("renamed.gguf"));
  const auto renamed = Take(Model::Load(Path("renamed.gguf"), {}));
  EXPECT_EQ(renamed->fingerprint(), model->fingerprint());
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(40));
  const auto receiver = MakeSession(*renamed);
  EXPECT_TRUE(Restore(PackCard(*sender, 4), 40, receiver.get()).ok());
}

TEST_F(HandoverTest, AnotherRopeBaseIsRefused) {
  const auto model = LoadTiny({});
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(40));
  const Card card = PackCard(*sender, 4);
  SessionOptions options = SmallOptions();
  options.rope_freq_base = 20000;
  const auto receiver = MakeSession(*model, options);
  const Status status = Restore(card, 40, receiver.get());
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_NE(status.message().find("RoPE (base 10000, scale 1; here base 20000, scale 1)"), std::string::npos)
      << status.message();
}

TEST_F(HandoverTest, AnotherContextSizeIsAccepted) {
  const auto model = LoadTiny({});
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(40));
  SessionOptions options = SmallOptions();
  options.context = 1024;
  options.batch = 32;
  const auto receiver = MakeSession(*model, options);
  EXPECT_TRUE(Restore(PackCard(*sender, 4), 40, receiver.get()).ok());
}

TEST_F(HandoverTest, AContextSizeThatChangesTheEffectiveRopeIsRefused) {
  TinyModelSpec spec;
  spec.rope_scaling = "longrope";  // contexts over half the training context use other frequency factors
  const auto model = LoadTiny(spec);
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(40));
  const Card card = PackCard(*sender, 4);
  SessionOptions options = SmallOptions();
  options.context = 768;
  EXPECT_TRUE(Restore(card, 40, MakeSession(*model, options).get()).ok());
  options.context = 2048;
  const Status status = Restore(card, 40, MakeSession(*model, options).get());
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_NE(status.message().find("they depend on the size of the context (-c)"), std::string::npos)
      << status.message();
}

TEST_F(HandoverTest, ACardWhoseValuesAreNotFiniteIsRefusedBeforeTheSessionIsChanged) {
  const auto model = LoadTiny({});
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(40));
  PackOptions pack;
  PackTimes times;
  const PackedCard packed = Take(PackSession(*sender, pack, &times));
  // The last block's scales stand before its padding: their bytes become NaN, and the checksums are made to fit.
  card_test::Parts parts(packed.Bytes());
  std::fill(parts.sections.back().end() - 128, parts.sections.back().end(), uint8_t{0xFF});
  const Card card = Take(Card::FromBytes(parts.Assemble()));
  const auto receiver = MakeSession(*model);
  const std::vector<int32_t> before = SomeTokens(10);
  Prefill(receiver.get(), before);
  const std::vector<float> logits = Logits(*receiver);
  EXPECT_EQ(Restore(card, 40, receiver.get()).code(), StatusCode::kCorrupt);
  EXPECT_EQ(receiver->tokens(), before);
  EXPECT_EQ(Logits(*receiver), logits);
  EXPECT_EQ(Take(receiver->TakeKv()).tokens(), before.size());
}

TEST_F(HandoverTest, AModelWithASmallerVocabularyRefusesBeforeItReadsTokens) {
  TinyModelSpec large;
  large.vocab = 400;
  const auto model = LoadTiny(large);
  const auto other = LoadTiny({}, "other.gguf");
  const auto sender = MakeSession(*model);
  std::vector<int32_t> tokens = SomeTokens(20);
  tokens.push_back(399);
  Prefill(sender.get(), tokens);
  const Card card = PackCard(*sender, 4);
  EXPECT_TRUE(CheckCardModel(card, *model).ok());
  EXPECT_EQ(CheckCardModel(card, *other).code(), StatusCode::kMismatch);
  EXPECT_EQ(Restore(card, 21, MakeSession(*other).get()).code(), StatusCode::kMismatch);
  EXPECT_EQ(other->Detokenize({399}), "");
}

TEST_F(HandoverTest, AStateWhosePositionsDoNotCountFromZeroIsRefused) {
  const auto model = LoadTiny({});
  const auto sender = MakeSession(*model);
  const std::vector<int32_t> tokens = SomeTokens(20);
  Prefill(sender.get(), tokens);
  std::vector<uint8_t> state = Take(sender->SaveState());
  const auto receiver = MakeSession(*model);
  ASSERT_TRUE(receiver->RestoreState(state, tokens).ok());
  for (size_t cell = 0; cell < tokens.size(); ++cell)
    state[16 + 12 * cell] += 100;  // positions, after a head of 16 bytes
  EXPECT_EQ(receiver->RestoreState(state, tokens).code(), StatusCode::kUnsupported);
  EXPECT_EQ(receiver->tokens(), tokens);
  state.pop_back();
  EXPECT_EQ(receiver->RestoreState(state, tokens).code(), StatusCode::kUnsupported);
  EXPECT_EQ(receiver->tokens(), tokens);
}

TEST_F(HandoverTest, LocalPolicyWithoutAChoiceIsRefused) {
  const auto model = LoadTiny({});
  const auto sender = MakeSession(*model);
  PrefillOptions prefill;
  prefill.window = kWindowTokens;
  ASSERT_TRUE(sender->Prefill(SomeTokens(100), prefill).ok());
  PackOptions options;
  options.policy = Policy::kLocal;
  options.code_bits = 2;
  PackTimes times;
  const Status status = PackSession(*sender, options, &times).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("changes nothing"), std::string::npos) << status.message();
}

TEST_F(HandoverTest, ASessionCanReceiveAgainAndAgain) {
  const auto model = LoadTiny({});
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(90));
  const Card card = PackCard(*sender, 16);
  const auto receiver = MakeSession(*model);
  std::vector<std::vector<int32_t>> answers;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Restore(card, 90, receiver.get()).ok());
    Prefill(receiver.get(), {9, 8, 7});
    answers.push_back(Greedy(receiver.get(), 16).tokens);
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(answers[0], answers[2]);
}

TEST_F(HandoverTest, LocalPolicyWidensWithinTheSameBytes) {
  const auto model = LoadTiny({});
  const auto sender = MakeSession(*model);
  PrefillOptions prefill;
  prefill.window = kWindowTokens;
  prefill.window_stride = kWindowStride;
  ASSERT_TRUE(sender->Prefill(SomeTokens(300), prefill).ok());
  PackOptions options;
  options.code_bits = 5;
  PackTimes times;
  const Card uniform = Take(Card::FromBytes(Take(PackSession(*sender, options, &times)).Bytes()));
  options.policy = Policy::kLocal;
  const Card local = Take(Card::FromBytes(Take(PackSession(*sender, options, &times)).Bytes()));
  EXPECT_EQ(local.info().policy, "local");
  EXPECT_NE(local.plan().level_of_token, uniform.plan().level_of_token);
  // The same budget; what differs is alignment, at most 64 bytes a block: 2 layers, 2 sides, 2 heads.
  EXPECT_NEAR(static_cast<double>(local.payload_bytes()), static_cast<double>(uniform.payload_bytes()),
              2 * 2 * 2 * 64 + 200);
}

TEST_F(HandoverTest, MaxBytesIsALimitOfTheWholeFile) {
  const auto model = LoadTiny({});
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), SomeTokens(200));
  const size_t narrow = PackCard(*sender, 4).file_bytes();
  const size_t wide = PackCard(*sender, 8).file_bytes();
  PackOptions options;
  PackTimes times;
  options.max_bytes = (narrow + wide) / 2;
  const size_t bytes = Take(PackSession(*sender, options, &times)).file_bytes();
  EXPECT_LE(bytes, options.max_bytes);
  EXPECT_GT(bytes, narrow);
  options.max_bytes = narrow / 2;
  EXPECT_EQ(PackSession(*sender, options, &times).status().code(), StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace qkvshare
