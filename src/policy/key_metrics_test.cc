#include "policy/key_metrics.h"

#include <gtest/gtest.h>

#include <limits>

#include "policy/policy_test_util.h"
#include "quant/block.h"

namespace qkvshare {
namespace {

constexpr size_t kTokens = 80;
constexpr uint32_t kGroup = 2;

class KeyMetricsTest : public ::testing::Test {
 protected:
  KeyMetricsTest() {
    cache_.Fill(&random_);
    profiles_ = MeasureKeyProfiles(cache_.view(), 0, 1);
    window_ = RandomWindow(&random_, cache_, 20, kGroup);
    // Each KV head has its own direction, in which its queries are long.
    for (size_t layer = 0; layer < cache_.shapes.size(); ++layer) {
      LayerQueries& queries = window_.layers[layer];
      for (size_t row = 0; row < window_.queries() * queries.heads; ++row) {
        queries.q[row * queries.dim + Direction(layer, row % queries.heads / kGroup)] *= 20;
      }
    }
  }
  size_t Direction(size_t layer, size_t kv_head) const { return (5 * kv_head + 3) % cache_.shapes[layer].key_dim; }

  // The squared error of all scores of a KV head, with its keys at 2 bits.
  double ScoreError(size_t layer, uint32_t kv_head, const ErrorMetric* metric) const {
    const size_t dim = cache_.shapes[layer].key_dim;
    const BlockCodec codec(ScalarKernels(), Side::kKeys, dim, profiles_[layer][kv_head], metric);
    const TokenOrder order = OrderTokens(UniformPlan(kTokens, {2, 2}, 0));
    const BlockLayout layout = BlockLayout::Make(dim, std::array{2}, order.level_size);
    std::vector<uint8_t> packed(layout.bytes);
    const HeadRows rows = cache_.view().head(layer, Side::kKeys, kv_head);
    EXPECT_TRUE(codec.Pack(rows, order, layout, packed.data()).ok());
    std::vector<Half> unpacked(kTokens * dim);
    EXPECT_TRUE(codec.Unpack(packed.data(), order, layout, kTokens, unpacked.data(), dim).ok());
    const LayerQueries& queries = window_.layers[layer];
    double sum = 0;
    for (size_t row = 0; row < window_.queries() * queries.heads; ++row) {
      if (row % queries.heads / kGroup != kv_head) continue;
      for (size_t t = 0; t < kTokens; ++t) {
        double error = 0;
        for (size_t c = 0; c < dim; ++c) {
          const float difference = HalfToFloat(unpacked[t * dim + c]) - HalfToFloat(rows.row(t)[c]);
          error += static_cast<double>(queries.q[row * dim + c]) * difference;
        }
        sum += error * error;
      }
    }
    return sum;
  }

  std::mt19937 random_{1};
  TestCache cache_{kTokens, {{2, 16, 16}, {1, 24, 8}, {3, 32, 32}}};
  KeyProfiles profiles_;
  AttentionWindow window_;
};

TEST_F(KeyMetricsTest, ScoresOfTheirQueriesLoseLess) {
  const Result<KeyMetrics> metrics = MeasureKeyMetrics(cache_.view(), profiles_, window_, 1);
  ASSERT_TRUE(metrics) << metrics.status().message();
  ASSERT_EQ(metrics->size(), cache_.shapes.size());
  for (size_t layer = 0; layer < metrics->size(); ++layer) {
    const uint32_t heads = cache_.shapes[layer].kv_heads;
    ASSERT_EQ((*metrics)[layer].size(), heads);
    for (uint32_t head = 0; head < heads; ++head) {
      SCOPED_TRACE(testing::Message() << "layer " << layer << ", head " << head);
      const double own = ScoreError(layer, head, &(*metrics)[layer][head]);
      EXPECT_LT(own, 0.4 * ScoreError(layer, head, nullptr));
      if (heads > 1) {
        EXPECT_LT(own, 0.7 * ScoreError(layer, head, &(*metrics)[layer][(head + 1) % heads]));
      }
    }
  }
}

TEST_F(KeyMetricsTest, DoNotDependOnThreads) {
  const KeyMetrics one = *MeasureKeyMetrics(cache_.view(), profiles_, window_, 1);
  const KeyMetrics three = *MeasureKeyMetrics(cache_.view(), profiles_, window_, 3);
  for (size_t layer = 0; layer < one.size(); ++layer) {
    for (size_t head = 0; head < one[layer].size(); ++head) {
      EXPECT_EQ(one[layer][head].feedback, three[layer][head].feedback);
      EXPECT_EQ(one[layer][head].weight, three[layer][head].weight);
    }
  }
}

TEST_F(KeyMetricsTest, WithoutQueriesThereAreNone) {
  const Result<KeyMetrics> metrics = MeasureKeyMetrics(cache_.view(), profiles_, AttentionWindow(), 1);
  ASSERT_TRUE(metrics) << metrics.status().message();
  EXPECT_TRUE(metrics->empty());
}

TEST_F(KeyMetricsTest, WrongQueriesAreRefused) {
  window_.layers[1].q[7] = std::numeric_limits<float>::quiet_NaN();
  const Result<KeyMetrics> bad = MeasureKeyMetrics(cache_.view(), profiles_, window_, 1);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.status().code(), StatusCode::kNonFinite);
  EXPECT_NE(bad.status().message().find("layer 1"), std::string::npos) << bad.status().message();
  window_.layers.pop_back();
  const Result<KeyMetrics> other = MeasureKeyMetrics(cache_.view(), profiles_, window_, 1);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace qkvshare
