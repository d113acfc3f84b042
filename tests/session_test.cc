// A session's token list always equals the rows of its cache, whatever ends a prefill or a generation.
#include "runtime/session.h"

#include <gtest/gtest.h>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

using SessionRowsTest = SessionTest;

void ExpectRowsEqualTokens(const Session& session) {
  const KvState kv = Take(session.TakeKv());
  EXPECT_EQ(kv.tokens(), session.tokens().size());
  for (size_t i = 0; i < kv.positions().size(); ++i) EXPECT_EQ(kv.positions()[i], static_cast<int32_t>(i));
}

TEST_F(SessionRowsTest, AfterGenerationThatStoppedByLength) {
  const auto model = LoadTiny({});
  const auto session = MakeSession(*model);
  Prefill(session.get(), SomeTokens(30));
  const Generation generation = Greedy(session.get(), 12);
  EXPECT_EQ(generation.stop, StopReason::kLength);
  EXPECT_EQ(generation.tokens.size(), 12u);
  EXPECT_EQ(session->tokens().size(), 30u + 11u);  // the last one sampled is not decoded
  ExpectRowsEqualTokens(*session);
  EXPECT_EQ(PackCard(*session, 4).tokens(), session->tokens().size());
}

TEST_F(SessionRowsTest, AfterGenerationThatStoppedByEndToken) {
  const auto model = LoadTiny({});
  // Any token may come first with a random model; sampling at a high temperature reaches an end token soon.
  for (uint32_t seed = 1; seed < 200; ++seed) {
    const auto session = MakeSession(*model);
    Prefill(session.get(), SomeTokens(30));
    GenerateOptions options;
    options.sampling = {/*temp=*/5.0f, /*top_k=*/0, /*top_p=*/1.0f, /*min_p=*/0.0f, seed};
    options.predict = 100;
    const Generation generation = Take(Generate(session.get(), options));
    if (generation.stop != StopReason::kEndToken) continue;
    EXPECT_EQ(session->tokens().size(), 30 + generation.tokens.size());
    ExpectRowsEqualTokens(*session);
    EXPECT_EQ(PackCard(*session, 4).tokens(), session->tokens().size());
    return;
  }
  FAIL() << "no seed reached an end token";
}

TEST_F(SessionRowsTest, AfterGenerationThatWasCancelled) {
  const auto model = LoadTiny({});
  const auto session = MakeSession(*model);
  Prefill(session.get(), SomeTokens(30));
  GenerateOptions options;
  options.sampling.temp = 0;
  options.predict = 50;
  int pieces = 0;
  options.on_text = [&](const std::string&) {
    if (++pieces == 5) session->Cancel();
  };
  const Generation generation = Take(Generate(session.get(), options));
  EXPECT_EQ(generation.stop, StopReason::kCancelled);
  EXPECT_EQ(generation.tokens.size(), 5u);
  ExpectRowsEqualTokens(*session);
  EXPECT_EQ(PackCard(*session, 4).tokens(), session->tokens().size());
  session->ResetCancel();
  Prefill(session.get(), {1, 2, 3});
  ExpectRowsEqualTokens(*session);
}

TEST_F(SessionRowsTest, AfterPrefillThatWasCancelled) {
  const auto model = LoadTiny({});
  const auto session = MakeSession(*model);
  PrefillOptions options;
  options.progress = [&](size_t done, size_t) {
    if (done >= 128) session->Cancel();
  };
  EXPECT_EQ(session->Prefill(SomeTokens(400), options).code(), StatusCode::kCancelled);
  EXPECT_EQ(session->tokens().size(), 128u);
  ExpectRowsEqualTokens(*session);
  session->ResetCancel();
  Prefill(session.get(), SomeTokens(50));
  EXPECT_EQ(session->tokens().size(), 178u);
  ExpectRowsEqualTokens(*session);
}

TEST_F(SessionRowsTest, AfterTruncation) {
  const auto model = LoadTiny({});
  const auto session = MakeSession(*model);
  Prefill(session.get(), SomeTokens(100));
  ASSERT_TRUE(session->Truncate(37).ok());
  EXPECT_EQ(session->tokens().size(), 37u);
  EXPECT_EQ(session->logits(), nullptr);
  ExpectRowsEqualTokens(*session);
  Prefill(session.get(), SomeTokens(20));
  ExpectRowsEqualTokens(*session);
}

TEST_F(SessionRowsTest, GenerationStopsWhereTheContextEnds) {
  const auto model = LoadTiny({});
  SessionOptions options = SmallOptions();
  options.context = 256;
  const auto session = MakeSession(*model, options);
  Prefill(session.get(), SomeTokens(250));
  const Generation generation = Greedy(session.get(), 50);
  EXPECT_EQ(generation.stop, StopReason::kContext);
  EXPECT_EQ(session->tokens().size(), 256u);
  ExpectRowsEqualTokens(*session);
}

using SessionRefusalTest = SessionTest;

TEST_F(SessionRefusalTest, APromptLongerThanTheContextChangesNothing) {
  const auto model = LoadTiny({});
  SessionOptions options = SmallOptions();
  options.context = 256;
  const auto session = MakeSession(*model, options);
  Prefill(session.get(), SomeTokens(100));
  const Status status = session->Prefill(SomeTokens(157), {});
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("257 tokens needed, 256 available"), std::string::npos) << status.message();
  EXPECT_EQ(session->tokens().size(), 100u);
  ExpectRowsEqualTokens(*session);
}

TEST_F(SessionRefusalTest, TokensOutsideTheVocabulary) {
  const auto model = LoadTiny({});
  const auto session = MakeSession(*model);
  const std::vector<int32_t> unknown = {1, model->vocab_size()};
  EXPECT_EQ(session->Prefill(unknown, {}).code(), StatusCode::kInvalidArgument);
  const std::vector<int32_t> negative = {-1};
  EXPECT_EQ(session->Prefill(negative, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session->Prefill({}, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(session->tokens().empty());
}

TEST_F(SessionRefusalTest, GenerationWithoutADecodedToken) {
  const auto model = LoadTiny({});
  const auto session = MakeSession(*model);
  EXPECT_EQ(Generate(session.get(), {}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SessionRefusalTest, CardsOfEmptySessions) {
  const auto model = LoadTiny({});
  PackTimes times;
  EXPECT_EQ(PackSession(*MakeSession(*model), {}, &times).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SessionRefusalTest, LocalPolicyWithoutAWindow) {
  const auto model = LoadTiny({});
  const auto session = MakeSession(*model);
  Prefill(session.get(), SomeTokens(20));
  PackOptions options;
  options.policy = Policy::kLocal;
  PackTimes times;
  EXPECT_EQ(PackSession(*session, options, &times).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SessionRefusalTest, RecurrentAndHybridModelsByArchitectureAndReason) {
  TinyModelSpec recurrent;
  recurrent.architecture = "mamba";
  ASSERT_TRUE(WriteTinyModel(recurrent, Path("recurrent.gguf")).ok());
  const Status mamba = Model::Load(Path("recurrent.gguf"), {}).status();
  EXPECT_EQ(mamba.code(), StatusCode::kUnsupported);
  EXPECT_NE(mamba.message().find("(architecture mamba) cannot be handed over yet: it is recurrent"), std::string::npos)
      << mamba.message();

  TinyModelSpec hybrid;
  hybrid.architecture = "lfm2";
  ASSERT_TRUE(WriteTinyModel(hybrid, Path("hybrid.gguf")).ok());
  const Status lfm2 = Model::Load(Path("hybrid.gguf"), {}).status();
  EXPECT_EQ(lfm2.code(), StatusCode::kUnsupported);
  EXPECT_NE(lfm2.message().find("(architecture lfm2) cannot be handed over yet: it is a hybrid"), std::string::npos)
      << lfm2.message();
}

TEST_F(SessionRefusalTest, FilesThatAreNoModels) {
  EXPECT_EQ(Model::Load(Path("absent.gguf"), {}).status().code(), StatusCode::kNotFound);
  ASSERT_EQ(system(("echo 'not a model' > " + Path("text.gguf")).c_str()), 0);
  EXPECT_EQ(Model::Load(Path("text.gguf"), {}).status().code(), StatusCode::kCorrupt);
}

using AttentionWindowTest = SessionTest;

TEST_F(AttentionWindowTest, HoldsTheLastTokensQueriesWhateverTheBatches) {
  const auto model = LoadTiny({});
  PrefillOptions prefill;
  prefill.window = 70;
  prefill.window_stride = 3;
  std::vector<AttentionWindow> windows;
  for (const uint32_t batch : {32u, 64u, 512u}) {
    SessionOptions options = SmallOptions();
    options.batch = batch;
    const auto session = MakeSession(*model, options);
    ASSERT_TRUE(session->Prefill(SomeTokens(200), prefill).ok());
    windows.push_back(session->window());
  }
  ASSERT_EQ(windows[0].queries(), 24u);  // every third of 70, the last included
  EXPECT_EQ(windows[0].last_visible.back(), 199u);
  EXPECT_EQ(windows[0].last_visible.front(), 199u - 3 * 23);
  ASSERT_EQ(windows[0].layers.size(), 2u);
  for (const AttentionWindow& window : windows) {
    EXPECT_EQ(window.last_visible, windows[0].last_visible);
    for (size_t layer = 0; layer < 2; ++layer) {
      const LayerQueries &a = windows[0].layers[layer], &b = window.layers[layer];
      EXPECT_EQ(b.heads, 4u);
      EXPECT_EQ(b.dim, 64u);
      EXPECT_FLOAT_EQ(b.scale, 0.125f);
      ASSERT_EQ(a.q.size(), b.q.size());
      // Batches change the order of sums: a thousandth of a query's size is left for that.
      for (size_t i = 0; i < a.q.size(); ++i) EXPECT_NEAR(a.q[i], b.q[i], 0.02f);
    }
  }
}

// A window is of the last tokens: where these go, it goes.
TEST_F(AttentionWindowTest, GoesWithItsTokens) {
  const auto model = LoadTiny({});
  const auto session = MakeSession(*model);
  PrefillOptions prefill;
  prefill.window = 64;
  const auto read = [&] {
    session->Clear();
    ASSERT_TRUE(session->Prefill(SomeTokens(100), prefill).ok());
    ASSERT_FALSE(session->window().empty());
  };
  read();
  const std::vector<uint8_t> state = Take(session->SaveState());
  const auto refused = session->Prefill(SomeTokens(session->context()), {});
  EXPECT_EQ(refused.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(session->Prefill({}, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session->window().queries(), 64u) << "a refused prefill took the window away";
  EXPECT_TRUE(session->Truncate(100).ok());
  EXPECT_FALSE(session->window().empty());
  EXPECT_TRUE(session->Truncate(99).ok());
  EXPECT_TRUE(session->window().empty());
  read();
  EXPECT_TRUE(session->RestoreState(state, SomeTokens(100)).ok());
  EXPECT_TRUE(session->window().empty());
  read();
  session->Clear();
  EXPECT_TRUE(session->window().empty());
}

TEST_F(AttentionWindowTest, DoesNotChangeTheResult) {
  const auto model = LoadTiny({});
  const auto plain = MakeSession(*model);
  Prefill(plain.get(), SomeTokens(200));
  const auto watched = MakeSession(*model);
  PrefillOptions prefill;
  prefill.window = 128;
  ASSERT_TRUE(watched->Prefill(SomeTokens(200), prefill).ok());
  EXPECT_EQ(Logits(*plain), Logits(*watched));
}

}  // namespace
}  // namespace qkvshare
