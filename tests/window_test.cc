// Models with sliding-window layers: their cards hold all rows of all layers.
#include <gtest/gtest.h>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class WindowTest : public SessionTest {
 protected:
  static TinyModelSpec Spec(int window, int layers = 4) {
    TinyModelSpec spec;
    spec.architecture = "gemma3";
    spec.layers = layers;
    spec.sliding_window = window;
    spec.rope_base_window = 500.0F;
    return spec;
  }
  static std::vector<float> LogitsAfter(Session* session, const std::vector<int32_t>& tokens) {
    Prefill(session, tokens);
    return Logits(*session);
  }
};

TEST_F(WindowTest, EachLayersWindowIsFoundOut) {
  using Windows = std::vector<uint32_t>;
  for (const uint32_t window : {1u, 2u, 3u, 16u, 300u, 1000u}) {  // the last is longer than the context
    const auto model = LoadTiny(Spec(static_cast<int>(window)));
    EXPECT_EQ(MakeSession(*model)->windows(), (Windows{window, 0, window, 0}));
  }
  EXPECT_EQ(MakeSession(*LoadTiny(Spec(16, 1)))->windows(), Windows{16});  // no layer without
  EXPECT_EQ(MakeSession(*LoadTiny(Spec(0)))->windows(), (Windows{0, 0, 0, 0}));
  SessionOptions options = SmallOptions();
  options.flash_attention = false;
  options.cache_type_k = CacheType::kQ8_0;
  EXPECT_EQ(MakeSession(*LoadTiny(Spec(16)), options)->windows(), (Windows{16, 0, 16, 0}));
}

TEST_F(WindowTest, StatesHaveTheRowsOfTokensThatHaveLeftTheWindow) {
  const auto model = LoadTiny(Spec(16));
  const auto session = MakeSession(*model);
  const std::vector<int32_t> tokens = SomeTokens(192);
  Prefill(session.get(), {tokens.begin(), tokens.begin() + 64});
  const KvState early = Take(session->TakeKv());  // 16 of them still in the window
  Prefill(session.get(), {tokens.begin() + 64, tokens.end()});
  const KvState late = Take(session->TakeKv());
  const KvView a = early.view(), b = late.view();
  ASSERT_EQ(a.tokens, 64u);
  ASSERT_EQ(b.tokens, 192u);
  for (size_t layer = 0; layer < 4; ++layer) {
    const size_t values = 64 * a.layers[layer].shape.row_values(Side::kKeys);
    EXPECT_TRUE(std::equal(a.layers[layer].keys, a.layers[layer].keys + values, b.layers[layer].keys));
    EXPECT_TRUE(std::equal(a.layers[layer].values, a.layers[layer].values + values, b.layers[layer].values));
    const Half* row = b.layers[layer].keys;
    EXPECT_TRUE(std::any_of(row, row + 64, [](Half x) { return x != 0; }));
  }
}

// Cards of the whole, and of the first tokens only: batches are of 64, so both halves were computed alike.
TEST_F(WindowTest, ExactCardsGoOnAsThePrefillDoes) {
  for (const bool flash_attention : {true, false}) {
    const auto model = LoadTiny(Spec(24));
    SessionOptions options = SmallOptions();
    options.flash_attention = flash_attention;
    const std::vector<int32_t> prefix = SomeTokens(192);
    const auto sender = MakeSession(*model, options);
    Prefill(sender.get(), prefix);
    const Card card = PackCard(*sender, 16);
    for (const size_t count : {64, 128, 192}) {
      const std::vector<int32_t> head(prefix.begin(), prefix.begin() + static_cast<ptrdiff_t>(count));
      const auto plain = MakeSession(*model, options);
      Prefill(plain.get(), head);
      const std::vector<float> expected = LogitsAfter(plain.get(), SomeTokens(20, 3));
      const auto receiver = MakeSession(*model, options);
      const Status status = Restore(card, count, receiver.get());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(LogitsAfter(receiver.get(), SomeTokens(20, 3)), expected);
      EXPECT_EQ(Greedy(receiver.get(), 24).tokens, Greedy(plain.get(), 24).tokens);
    }
  }
}

TEST_F(WindowTest, TruncationBringsBackWhatHadLeftTheWindow) {
  const auto model = LoadTiny(Spec(24));
  const std::vector<int32_t> prefix = SomeTokens(192);
  const auto session = MakeSession(*model);
  Prefill(session.get(), prefix);
  ASSERT_TRUE(session->Truncate(64).ok());
  const auto plain = MakeSession(*model);
  Prefill(plain.get(), {prefix.begin(), prefix.begin() + 64});
  EXPECT_EQ(LogitsAfter(session.get(), {1, 2, 3}), LogitsAfter(plain.get(), {1, 2, 3}));
}

TEST_F(WindowTest, StatesAreRestoredWhole) {
  const auto model = LoadTiny(Spec(24));
  const std::vector<int32_t> prefix = SomeTokens(192);
  const auto sender = MakeSession(*model);
  Prefill(sender.get(), prefix);
  const std::vector<uint8_t> state = Take(sender->SaveState());
  const auto receiver = MakeSession(*model);
  ASSERT_TRUE(receiver->RestoreState(state, prefix).ok());
  ASSERT_TRUE(receiver->Truncate(128).ok());
  const auto plain = MakeSession(*model);
  Prefill(plain.get(), {prefix.begin(), prefix.begin() + 128});
  EXPECT_EQ(LogitsAfter(receiver.get(), {1, 2, 3}), LogitsAfter(plain.get(), {1, 2, 3}));
  EXPECT_EQ(Take(sender->SaveState()), state);  // taking it changed nothing
}

// As llama.cpp itself saves it: only the window's rows of the layers that have one.
TEST_F(WindowTest, AStateThatLacksRowsIsRefused) {
  const auto model = LoadTiny(Spec(24));
  const std::vector<int32_t> prefix = SomeTokens(64);
  const auto session = MakeSession(*model);
  Prefill(session.get(), prefix);
  std::vector<std::vector<uint8_t>> states;
  const StateLayout& layout = session->state_layout();
  // A state of all tokens for the layers without a window, and of fewer for the others.
  const auto zeros = [](size_t, Side, Half*) { return Status(); };
  std::vector<int32_t> positions(24);
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<uint8_t> whole = Take(BuildState(layout, positions, 1, zeros));
  positions.pop_back();
  const std::vector<uint8_t> fewer = Take(BuildState(layout, positions, 1, zeros));
  // Both parts are of the same size: two layers with and two without a window.
  std::vector<uint8_t> lacking(whole.begin(), whole.begin() + 8 + static_cast<ptrdiff_t>((whole.size() - 8) / 2));
  lacking.insert(lacking.end(), fewer.begin() + 8 + static_cast<ptrdiff_t>((fewer.size() - 8) / 2), fewer.end());
  const Status status = session->RestoreState(lacking, SomeTokens(24));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("lacks rows of layers with a sliding window: it has 23 of 24"), std::string::npos)
      << status.message();
  EXPECT_EQ(CompleteState({lacking}, layout).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(session->tokens(), prefix);
}

TEST_F(WindowTest, ThePolicyKnowsTheWindows) {
  const auto model = LoadTiny(Spec(16));
  const auto session = MakeSession(*model);
  PrefillOptions prefill;
  prefill.window = kWindowTokens;
  prefill.window_stride = kWindowStride;
  ASSERT_TRUE(session->Prefill(SomeTokens(200), prefill).ok());
  ASSERT_EQ(session->window().layers.size(), 4u);
  EXPECT_EQ(session->window().layers[0].window, 16u);
  EXPECT_EQ(session->window().layers[1].window, 0u);
  PackOptions options;
  options.policy = Policy::kLocal;
  options.code_bits = 5;
  PackTimes times;
  EXPECT_TRUE(PackSession(*session, options, &times));
}

}  // namespace
}  // namespace qkvshare
