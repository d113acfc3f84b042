#include "runtime/score_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "card/card_test_util.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

constexpr size_t kTokens = 40;

class ScoreErrorTest : public testing::Test {
 protected:
  // Two query heads a KV head.
  ScoreErrorTest() {
    window_.last_visible = {20, kTokens - 1};
    for (const LayerShape& shape : kv_.shapes) {
      LayerQueries& queries = window_.layers.emplace_back();
      queries.heads = 2 * shape.kv_heads;
      queries.dim = shape.key_dim;
      queries.scale = 0.5f;
      for (size_t i = 0; i < window_.queries() * queries.heads * queries.dim; ++i)
        queries.q.push_back(std::sin(static_cast<float>(i * i % 997)));
    }
  }
  Card Pack(Level level) const {
    const KeyProfiles profiles = MeasureKeyProfiles(kv_.view(), 0, 1);
    return *Card::FromBytes(
        PackCard(kv_.view(), UniformPlan(kTokens, level, 0), profiles, card_test::Content(kTokens), 1)->Bytes());
  }
  // By definition: all tokens, all queries of one KV head.
  double Expected(const Card& card, size_t layer, uint32_t kv_head) const {
    const LayerQueries& queries = window_.layers[layer];
    const std::vector<Half> packed = card_test::UnpackSide(card, layer, Side::kKeys, kTokens);
    const HeadRows exact = kv_.view().head(layer, Side::kKeys, kv_head);
    double sum = 0, count = 0;
    for (size_t row = 0; row < window_.queries() * queries.heads; ++row) {
      if (row % queries.heads / 2 != kv_head) continue;
      for (size_t t = 0; t < kTokens; ++t, ++count) {
        double score = 0;
        for (size_t c = 0; c < queries.dim; ++c) {
          const size_t at = t * kv_.shapes[layer].row_values(Side::kKeys) + kv_head * queries.dim + c;
          score += static_cast<double>(queries.q[row * queries.dim + c]) *
                   (static_cast<double>(HalfToFloat(packed[at])) - static_cast<double>(HalfToFloat(exact.row(t)[c])));
        }
        sum += score * score;
      }
    }
    return static_cast<double>(queries.scale) * std::sqrt(sum / count);
  }

  card_test::SyntheticKv kv_{kTokens, {{2, 32, 16}, {1, 8, 8}, {3, 24, 24}}, 7};
  AttentionWindow window_;
};

TEST_F(ScoreErrorTest, IsTheMeanOverLayersOfThatOfTheirHeads) {
  const Card card = Pack({2, 2});
  double mean = 0, worst = 0;
  for (size_t layer = 0; layer < kv_.shapes.size(); ++layer) {
    double square = 0;
    const uint32_t heads = kv_.shapes[layer].kv_heads;
    for (uint32_t head = 0; head < heads; ++head) square += std::pow(Expected(card, layer, head), 2) / heads;
    worst = std::max(worst, std::sqrt(square));
    mean += square / static_cast<double>(kv_.shapes.size());
  }
  const ScoreError found = *MeasureScoreError(kv_.view(), window_, card, 2);
  EXPECT_NEAR(found.rms, std::sqrt(mean), 1e-9);
  EXPECT_NEAR(found.worst_rms, worst, 1e-9);
  EXPECT_GT(found.worst_rms, found.rms);
  EXPECT_LT(MeasureScoreError(kv_.view(), window_, Pack({4, 4}), 1)->rms, found.rms / 2);
  EXPECT_EQ(MeasureScoreError(kv_.view(), window_, Pack({16, 16}), 1)->rms, 0);
}

TEST_F(ScoreErrorTest, NeedsQueriesAndTheCardsOwnRows) {
  const Card card = Pack({2, 2});
  EXPECT_EQ(MeasureScoreError(kv_.view(), AttentionWindow(), card, 1)->rms, 0);
  const card_test::SyntheticKv others(kTokens + 1, kv_.shapes, 8);
  EXPECT_EQ(MeasureScoreError(others.view(), window_, card, 1).status().code(), StatusCode::kInvalidArgument);
  window_.last_visible.back() = kTokens;
  EXPECT_EQ(MeasureScoreError(kv_.view(), window_, card, 1).status().code(), StatusCode::kInvalidArgument);
}

using ModelScoreErrorTest = SessionTest;

// A bias that positions turn cannot be taken out by a mean.
TEST_F(ModelScoreErrorTest, TellsAModelWithExtremeKeyBias) {
  const auto error_of = [&](float bias, double bits) {
    TinyModelSpec spec;
    spec.architecture = "qwen2";
    spec.key_bias = bias;
    const auto model = LoadTiny(spec, "bias.gguf");
    const auto session = MakeSession(*model);
    PrefillOptions prefill;
    KeepForPacking(*session, &prefill);
    EXPECT_TRUE(session->Prefill(SomeTokens(200), prefill).ok());
    const PackSource source{session->card_context(), session->tokens(), &session->window(), 0};
    return Take(MeasureScoreError(source, PackCard(*session, bits))).rms;
  };
  EXPECT_LT(error_of(20, 4), kSuspectScoreError);
  EXPECT_GT(error_of(600, 4), kSuspectScoreError);
  EXPECT_EQ(error_of(600, 16), 0);
}

}  // namespace
}  // namespace qkvshare
