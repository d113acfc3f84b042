#include "policy/token_costs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "policy/policy_test_util.h"
#include "quant/block.h"

namespace qkvshare {
namespace {

constexpr size_t kSinks = kSinkTokens;

// Several KV heads, one, and another number; sizes of keys and values that differ.
std::vector<LayerShape> Shapes() { return {{2, 16, 16}, {1, 24, 8}, {3, 8, 32}}; }

double Dot(const float* q, const Half* row, size_t dim) {
  double sum = 0;
  for (size_t c = 0; c < dim; ++c) sum += double{q[c]} * double{HalfToFloat(row[c])};
  return sum;
}

// The header's formulas, one query, head and token after the other.
class SlowCosts {
 public:
  SlowCosts(TestCache* cache, const KeyProfiles& profiles, const AttentionWindow& window)
      : cache_(*cache), profiles_(profiles), window_(window) {
    for (size_t w = 0; w < kWidths.size(); ++w) {
      costs_.keys[w].assign(cache_.tokens, 0.0);
      costs_.values[w].assign(cache_.tokens, 0.0);
    }
    for (size_t layer = 0; layer < cache_.shapes.size(); ++layer) {
      for (size_t head = 0; head < cache_.shapes[layer].kv_heads; ++head) AddKvHead(layer, head);
    }
  }
  const TokenCosts& costs() const { return costs_; }

 private:
  // |q|^2 in the space of the codes: the rotation keeps lengths, the channel scale does not.
  double CodeQueryNorm(const float* q, size_t layer, size_t kv_head) const {
    double sum = 0;
    for (size_t c = 0; c < cache_.shapes[layer].key_dim; ++c) {
      const double scale = profiles_.empty() ? 1.0 : double{HalfToFloat(profiles_[layer][kv_head].scale[c])};
      sum += double{q[c]} * double{q[c]} * scale * scale;
    }
    return sum;
  }

  std::vector<double> Errors(size_t layer, Side side, size_t kv_head, int bits) const {
    const ChannelProfile profile =
        side == Side::kKeys && !profiles_.empty() ? profiles_[layer][kv_head] : ChannelProfile();
    const BlockCodec codec(ScalarKernels(), side, cache_.shapes[layer].dim(side), profile);
    std::vector<float> errors(cache_.tokens);
    EXPECT_TRUE(codec.MeasureErrors(cache_.view().head(layer, side, kv_head), bits, errors.data()).ok());
    return {errors.begin(), errors.end()};
  }

  void AddKvHead(size_t layer, size_t kv_head) {
    const LayerShape& shape = cache_.shapes[layer];
    const LayerQueries& queries = window_.layers[layer];
    std::vector<double> key_weight(cache_.tokens), value_weight(cache_.tokens);
    double size = 0;
    for (size_t i = 0; i < window_.queries(); ++i) {
      for (size_t head = 0; head < queries.heads; ++head) {
        if (head / (queries.heads / shape.kv_heads) != kv_head) continue;
        AddQuery(layer, kv_head, &queries.q[(i * queries.heads + head) * queries.dim], window_.last_visible[i],
                 &key_weight, &value_weight, &size);
      }
    }
    for (size_t w = 0; kWidths[w] < 16; ++w) {
      const std::vector<double> key_errors = Errors(layer, Side::kKeys, kv_head, kWidths[w]);
      const std::vector<double> value_errors = Errors(layer, Side::kValues, kv_head, kWidths[w]);
      for (size_t t = 0; t < cache_.tokens; ++t) {
        costs_.keys[w][t] += key_weight[t] * key_errors[t] / size;
        costs_.values[w][t] += value_weight[t] * value_errors[t] / size;
      }
    }
  }

  void AddQuery(size_t layer, size_t kv_head, const float* q, size_t last, std::vector<double>* key_weight,
                std::vector<double>* value_weight, double* size) {
    const LayerShape& shape = cache_.shapes[layer];
    const LayerQueries& queries = window_.layers[layer];
    const size_t first = queries.window > 0 && last + 1 > queries.window ? last + 1 - queries.window : 0;
    std::vector<double> weight(last + 1);
    double total = 0;
    for (size_t t = first; t <= last; ++t) {
      double score = double{queries.scale} * Dot(q, cache_.row(layer, Side::kKeys, t, kv_head), shape.key_dim);
      if (queries.softcap > 0) score = double{queries.softcap} * std::tanh(score / double{queries.softcap});
      total += weight[t] = std::exp(score);
    }
    std::vector<double> output(shape.value_dim, 0.0);
    for (size_t t = first; t <= last; ++t) {
      weight[t] /= total;
      for (size_t c = 0; c < shape.value_dim; ++c) {
        output[c] += weight[t] * double{HalfToFloat(cache_.row(layer, Side::kValues, t, kv_head)[c])};
      }
    }
    for (const double x : output) *size += x * x;
    const double query = double{queries.scale} * double{queries.scale} * CodeQueryNorm(q, layer, kv_head) /
                         static_cast<double>(shape.key_dim);
    for (size_t t = first; t <= last; ++t) {
      const double floored = 0.9 * weight[t] + 0.1 / static_cast<double>(last + 1 - first);
      double distance = 0;
      for (size_t c = 0; c < shape.value_dim; ++c) {
        const double d = double{HalfToFloat(cache_.row(layer, Side::kValues, t, kv_head)[c])} - output[c];
        distance += d * d;
      }
      (*key_weight)[t] += floored * query * distance;
      (*value_weight)[t] += floored;
    }
  }

  TestCache& cache_;
  const KeyProfiles& profiles_;
  const AttentionWindow& window_;
  TokenCosts costs_;
};

Result<TokenCosts> Measure(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window, int threads) {
  CostOptions options;
  options.threads = threads;
  QKV_ASSIGN_OR_RETURN(const MeasuredCosts measured, MeasureTokenCosts(kv, profiles, window, options));
  return measured.costs;
}

// Relative: single precision leaves about 1e-7 of each of some dozen terms, and the largest difference measured was
// 4e-7. A wrong factor, head, token or visibility gives at least 1e-3.
void ExpectClose(const TokenCosts& costs, const TokenCosts& expected) {
  constexpr double kTolerance = 1e-5;
  for (size_t w = 0; w < kWidths.size(); ++w) {
    for (const auto& [ours, theirs] :
         {std::pair{&costs.keys[w], &expected.keys[w]}, std::pair{&costs.values[w], &expected.values[w]}}) {
      ASSERT_EQ(ours->size(), theirs->size());
      for (size_t t = 0; t < ours->size(); ++t) {
        ASSERT_NEAR((*ours)[t], (*theirs)[t], kTolerance * (*theirs)[t]) << kWidths[w] << " bits, token " << t;
      }
    }
  }
}

TEST(MeasureTokenCosts, EqualsTheFormulas) {
  std::mt19937 random(1);
  for (const uint32_t group : {1u, 3u}) {
    for (const float softcap : {0.0f, 2.0f}) {
      for (const bool with_profile : {false, true}) {
        SCOPED_TRACE(testing::Message() << "group " << group << ", softcap " << softcap << ", profile "
                                        << with_profile);
        TestCache cache(29, Shapes());
        cache.Fill(&random, 1.5f);
        const KeyProfiles profiles = with_profile ? MeasureKeyProfiles(cache.view(), kSinks, 1) : KeyProfiles();
        AttentionWindow window = RandomWindow(&random, cache, 7, group, softcap);
        window.last_visible[2] = 0;  // sees one token only
        const Result<TokenCosts> costs = Measure(cache.view(), profiles, window, 1);
        ASSERT_TRUE(costs) << costs.status().message();
        ExpectClose(*costs, SlowCosts(&cache, profiles, window).costs());
      }
    }
  }
}

TEST(MeasureTokenCosts, QueriesSeeNoTokenThatHasLeftTheirLayersWindow) {
  std::mt19937 random(6);
  TestCache cache(29, Shapes());
  cache.Fill(&random, 1.5f);
  AttentionWindow window = RandomWindow(&random, cache, 7, 2);
  window.last_visible[2] = 3;  // sees fewer tokens than a window
  window.layers[0].window = 5;
  window.layers[2].window = 64;  // longer than the cache
  const Result<TokenCosts> mixed = Measure(cache.view(), {}, window, 1);
  ASSERT_TRUE(mixed) << mixed.status().message();
  ExpectClose(*mixed, SlowCosts(&cache, {}, window).costs());
  for (LayerQueries& layer : window.layers) layer.window = 5;
  const Result<TokenCosts> narrow = Measure(cache.view(), {}, window, 1);
  ASSERT_TRUE(narrow) << narrow.status().message();
  EXPECT_EQ(narrow->values[0][10], 0.0);  // 22 - 5 is the first token that the first query sees
  EXPECT_GT(narrow->values[0][18], 0.0);
  EXPECT_GT(mixed->values[0][10], 0.0);
}

TEST(MeasureTokenCosts, SoftcapAndProfileMatter) {
  // Otherwise the test above could not tell whether they are used.
  std::mt19937 random(2);
  TestCache cache(29, Shapes());
  cache.Fill(&random, 3.0f);
  AttentionWindow window = RandomWindow(&random, cache, 7, 2);
  const KeyProfiles profiles = MeasureKeyProfiles(cache.view(), kSinks, 1);
  const Result<TokenCosts> plain = Measure(cache.view(), {}, window, 1);
  const Result<TokenCosts> profiled = Measure(cache.view(), profiles, window, 1);
  for (LayerQueries& layer : window.layers) layer.softcap = 1.0f;
  const Result<TokenCosts> capped = Measure(cache.view(), {}, window, 1);
  ASSERT_TRUE(plain && profiled && capped);
  EXPECT_GT(std::fabs(profiled->keys[0][10] / plain->keys[0][10] - 1), 0.01);
  EXPECT_GT(std::fabs(capped->values[0][10] / plain->values[0][10] - 1), 0.01);
}

TEST(MeasureTokenCosts, FallsWithTheWidthAndIsZeroAtSixteenBits) {
  std::mt19937 random(3);
  TestCache cache(40, Shapes());
  cache.Fill(&random);
  const Result<TokenCosts> costs = Measure(cache.view(), {}, RandomWindow(&random, cache, 5, 2), 1);
  ASSERT_TRUE(costs);
  for (size_t t = 0; t < 40; ++t) {
    for (size_t w = 0; kWidths[w] < 16; ++w) {
      EXPECT_GT(costs->keys[w][t], costs->keys[w + 1][t]);
      EXPECT_GT(costs->values[w][t], costs->values[w + 1][t]);
    }
    EXPECT_EQ(costs->keys[3][t], 0.0);
    EXPECT_EQ(costs->values[3][t], 0.0);
  }
}

TEST(MeasureTokenCosts, IsIdenticalForAnyNumberOfThreads) {
  std::mt19937 random(4);
  TestCache cache(50, {{2, 16, 16}, {1, 24, 8}, {3, 8, 32}, {2, 16, 16}, {4, 64, 64}});
  cache.Fill(&random);
  const KeyProfiles profiles = MeasureKeyProfiles(cache.view(), kSinks, 1);
  const AttentionWindow window = RandomWindow(&random, cache, 8, 2);
  const Result<TokenCosts> one = Measure(cache.view(), profiles, window, 1);
  ASSERT_TRUE(one);
  for (int repeat = 0; repeat < 5; ++repeat) {
    const Result<TokenCosts> four = Measure(cache.view(), profiles, window, 4);
    ASSERT_TRUE(four);
    EXPECT_EQ(one->keys, four->keys);
    EXPECT_EQ(one->values, four->values);
  }
}

TEST(MeasureTokenCosts, TokensThatAreAttendedToCostMore) {
  std::mt19937 random(5);
  TestCache cache(60, {{1, 32, 32}});
  cache.Fill(&random, 0.1f);
  AttentionWindow window = RandomWindow(&random, cache, 6, 2);
  // Token 20 is what all queries look for; the key of token 21 is as large, but points away.
  for (size_t c = 0; c < 32; ++c) {
    const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
    cache.row(0, Side::kKeys, 20, 0)[c] = FloatToHalf(sign);
    cache.row(0, Side::kKeys, 21, 0)[c] = FloatToHalf(-sign);
    for (size_t row = 0; row < 12; ++row) window.layers[0].q[row * 32 + c] = 1.5f * sign;
    cache.row(0, Side::kValues, 21, 0)[c] = cache.row(0, Side::kValues, 20, 0)[c];
  }
  const Result<TokenCosts> costs = Measure(cache.view(), {}, window, 1);
  ASSERT_TRUE(costs);
  for (size_t w = 0; kWidths[w] < 16; ++w) {
    EXPECT_GT(costs->values[w][20], 20 * costs->values[w][21]);
    for (size_t t = 0; t < 60; ++t) {
      if (t == 20) continue;
      EXPECT_GT(costs->values[w][20], costs->values[w][t]) << t;
    }
  }
}

TEST(MeasureTokenCosts, TokensThatNoQuerySeesCostNothing) {
  std::mt19937 random(6);
  TestCache cache(30, {{1, 16, 16}});
  cache.Fill(&random);
  AttentionWindow window = RandomWindow(&random, cache, 3, 2);
  window.last_visible = {4, 9, 9};
  const Result<TokenCosts> costs = Measure(cache.view(), {}, window, 1);
  ASSERT_TRUE(costs);
  for (size_t t = 0; t < 30; ++t) {
    EXPECT_EQ(costs->keys[0][t] > 0, t <= 9) << t;
    EXPECT_EQ(costs->values[0][t] > 0, t <= 9) << t;
  }
}

TEST(MeasureTokenCosts, StaysFiniteWithConstantAndZeroRows) {
  TestCache cache(10, {{1, 16, 16}});  // all zero
  std::mt19937 random(7);
  const AttentionWindow window = RandomWindow(&random, cache, 3, 2);
  const KeyProfiles profiles = MeasureKeyProfiles(cache.view(), kSinks, 1);
  Result<TokenCosts> costs = Measure(cache.view(), profiles, window, 1);
  ASSERT_TRUE(costs);
  for (size_t t = 0; t < 10; ++t) EXPECT_EQ(costs->keys[0][t] + costs->values[0][t], 0.0);
  // Scores far outside what exp takes without the largest being subtracted.
  cache.Fill(&random, 3000.0f);
  costs = Measure(cache.view(), {}, window, 1);
  ASSERT_TRUE(costs);
  for (size_t t = 0; t < 10; ++t) EXPECT_TRUE(std::isfinite(costs->keys[0][t]) && std::isfinite(costs->values[0][t]));
}

TEST(MeasureTokenCosts, RefusesWindowsThatDoNotFit) {
  std::mt19937 random(8);
  TestCache cache(20, Shapes());
  cache.Fill(&random);
  const AttentionWindow good = RandomWindow(&random, cache, 3, 2);
  const auto refused = [&](const std::function<void(AttentionWindow*)>& change, const std::string& what) {
    AttentionWindow window = good;
    change(&window);
    const Result<TokenCosts> costs = Measure(cache.view(), {}, window, 1);
    ASSERT_FALSE(costs) << what;
    EXPECT_EQ(costs.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(costs.status().message().find(what), std::string::npos) << costs.status().message();
  };
  ASSERT_TRUE(Measure(cache.view(), {}, good, 1));
  refused([](AttentionWindow* w) { *w = {}; }, "no queries");
  refused([](AttentionWindow* w) { w->layers.pop_back(); }, "2 layers, but the cache has 3");
  refused([](AttentionWindow* w) { w->layers[1].dim = 16; }, "layer 1");
  refused([](AttentionWindow* w) { w->layers[0].heads = 0; }, "layer 0");
  refused([](AttentionWindow* w) { w->layers[2].heads = 4, w->layers[2].q.resize(3 * 4 * 8); },
          "layer 2");  // of 3 KV heads
  refused([](AttentionWindow* w) { w->layers[1].q.pop_back(); }, "layer 1");
  refused([](AttentionWindow* w) { w->layers[1].q.push_back(0); }, "layer 1");
  refused([](AttentionWindow* w) { w->last_visible.back() = 20; }, "past the cache");
}

TEST(MeasureTokenCosts, RefusesNanAndInfinityWithLayerAndToken) {
  std::mt19937 random(9);
  for (const Half bad : {Half{0x7E00}, Half{0x7C00}, Half{0xFC00}}) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      for (const int threads : {1, 4}) {
        TestCache cache(20, Shapes());
        cache.Fill(&random);
        cache.row(2, side, 13, 1)[3] = bad;
        const Result<TokenCosts> costs = Measure(cache.view(), {}, RandomWindow(&random, cache, 3, 2), threads);
        ASSERT_FALSE(costs);
        EXPECT_EQ(costs.status().code(), StatusCode::kNonFinite);
        for (const std::string& word : {std::string("layer 2"), std::string("token 13"), std::string(SideName(side))}) {
          EXPECT_NE(costs.status().message().find(word), std::string::npos) << costs.status().message();
        }
      }
    }
  }
}

MeasuredCosts MeasureWith(const TestCache& cache, const AttentionWindow& window, const CostOptions& options) {
  const Result<MeasuredCosts> measured = MeasureTokenCosts(cache.view(), {}, window, options);
  EXPECT_TRUE(measured) << measured.status().message();
  return measured ? *measured : MeasuredCosts();
}

TEST(MeasureTokenCosts, LayersAreMeasuredAtTheirAdjustedWidths) {
  std::mt19937 random(10);
  TestCache cache(40, {{2, 16, 16}, {2, 16, 16}});
  cache.Fill(&random);
  AttentionWindow window = RandomWindow(&random, cache, 5, 2);
  CostOptions options;
  const MeasuredCosts plain = MeasureWith(cache, window, options);
  const std::vector<LayerAdjustment> wider = {{1, 0}, {1, 0}};
  options.layers = wider;
  const MeasuredCosts keys = MeasureWith(cache, window, options);
  EXPECT_EQ(keys.costs.keys[0], plain.costs.keys[1]);
  EXPECT_EQ(keys.costs.keys[1], plain.costs.keys[2]);
  EXPECT_EQ(keys.costs.keys[2], std::vector<double>(40, 0.0));
  EXPECT_EQ(keys.costs.values, plain.costs.values);
  const std::vector<LayerAdjustment> mixed = {{0, -3}, {0, 0}};
  options.layers = mixed;
  const MeasuredCosts values = MeasureWith(cache, window, options);
  EXPECT_EQ(values.costs.values[0], plain.costs.values[0]);
  for (size_t t = 0; t < 40; ++t) {
    EXPECT_GT(values.costs.values[2][t], plain.costs.values[2][t]);
    EXPECT_LT(values.costs.values[2][t], plain.costs.values[0][t]);
  }
  const std::vector<LayerAdjustment> wrong(3);
  options.layers = wrong;
  EXPECT_EQ(MeasureTokenCosts(cache.view(), {}, window, options).status().code(), StatusCode::kInvalidArgument);
}

TEST(MeasureTokenCosts, SomeRowsTellTheErrorsOfAll) {
  std::mt19937 random(11);
  TestCache cache(500, {{2, 64, 64}});
  cache.Fill(&random, 2.0f);
  for (size_t t = 0; t < 500; t += 3) {  // rows of other lengths
    for (size_t c = 0; c < 64; ++c) {
      Half* value = cache.row(0, Side::kValues, t, 0) + c;
      *value = FloatToHalf(4 * HalfToFloat(*value));
    }
  }
  const AttentionWindow window = RandomWindow(&random, cache, 4, 1);
  CostOptions options;
  options.measured_rows = 500;
  const MeasuredCosts all = MeasureWith(cache, window, options);
  options.measured_rows = 50;
  const MeasuredCosts some = MeasureWith(cache, window, options);
  for (size_t w = 0; kWidths[w] < 16; ++w) {
    double difference = 0, sum = 0;
    for (size_t t = kSinks; t < 500; ++t) {
      difference += std::fabs(some.costs.values[w][t] - all.costs.values[w][t]);
      sum += all.costs.values[w][t];
    }
    // The share of its length that a row loses varies from row to row; measured 0.1 to 0.23.
    EXPECT_LT(difference, 0.3 * sum) << kWidths[w];
  }
  cache.row(0, Side::kKeys, 7, 1)[5] = 0x7C00;  // not one of the rows that are measured
  EXPECT_EQ(MeasureTokenCosts(cache.view(), {}, window, options).status().code(), StatusCode::kNonFinite);
}

TEST(MeasureTokenCosts, WithoutAttentionAllThatAQuerySeesWeighsTheSame) {
  std::mt19937 random(12);
  TestCache cache(30, {{1, 16, 16}});
  cache.Fill(&random, 3.0f);
  AttentionWindow window = RandomWindow(&random, cache, 4, 2);
  for (uint32_t& last : window.last_visible) last = 29;
  CostOptions options;
  options.attention = false;
  const MeasuredCosts off = MeasureWith(cache, window, options);
  AttentionWindow blind = window;
  for (float& q : blind.layers[0].q) q = 0;  // every score is 0: uniform attention
  options.attention = true;
  const MeasuredCosts uniform = MeasureWith(cache, blind, options);
  for (size_t t = 0; t < 30; ++t) {
    // Relative; the same sums in single precision.
    EXPECT_NEAR(off.costs.values[0][t], uniform.costs.values[0][t], 1e-5 * uniform.costs.values[0][t]);
  }
  EXPECT_NE(off.attention.mass, uniform.attention.mass);  // what is measured stays measured
}

TEST(MeasureAttention, IsTheAttentionOfTheCosts) {
  std::mt19937 random(13);
  TestCache cache(70, Shapes());
  cache.Fill(&random);
  AttentionWindow window = RandomWindow(&random, cache, 9, 2);
  window.layers[1].window = 20;
  CostOptions options;
  options.spread = true;
  const AttentionStats stats = MeasureWith(cache, window, options).attention;
  const Result<AttentionStats> alone = MeasureAttention(cache.view(), window, 3);
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->mass, stats.mass);
  EXPECT_EQ(alone->seen_by, stats.seen_by);
  double sum = 0;
  for (const double mass : stats.mass) sum += mass;
  EXPECT_EQ(stats.rows, 9.0 * (4 + 2 + 6));
  EXPECT_NEAR(sum, stats.rows, 1e-4 * stats.rows);  // the weights of a query sum to 1, in single precision
  EXPECT_EQ(stats.seen_by[0], 9.0 * (4 + 6));       // not in layer 1, whose window has passed it
  EXPECT_EQ(stats.seen_by[69], 12.0);
  for (size_t t = 0; t < 70; ++t) {
    EXPECT_LE(stats.squares[t], stats.mass[t]);
    EXPECT_LE(stats.log_mass[t], 1e-6);
  }
  window.layers.clear();
  EXPECT_EQ(MeasureAttention(cache.view(), window, 1).status().code(), StatusCode::kInvalidArgument);
}

// Queries see the whole context; what counts of it is the part that is packed.
TEST(EarlierRows, AreAttendedToAndCostNothing) {
  std::mt19937 random(14);
  constexpr size_t kAll = 53, kFirst = 30;
  TestCache cache(kAll, Shapes());
  cache.Fill(&random);
  AttentionWindow window = RandomWindow(&random, cache, 9, 2, 2.0f);
  window.layers[1].window = 12;  // reaches back over the seam for the first queries only
  window.layers[2].window = 40;
  CostOptions options;
  options.spread = true;
  const MeasuredCosts whole = MeasureWith(cache, window, options);
  AttentionWindow own = window;
  for (uint32_t& last : own.last_visible) last -= kFirst;
  const EarlierRows earlier = cache.earlier(kFirst);
  options.earlier = &earlier;
  const KvView kv = cache.view_from(kFirst);
  const Result<MeasuredCosts> part = MeasureTokenCosts(kv, {}, own, options);
  ASSERT_TRUE(part) << part.status().message();
  for (const auto sides : {&TokenCosts::keys, &TokenCosts::values}) {
    for (size_t w = 0; kWidths[w] < 16; ++w) {
      const std::vector<double>&ours = (part->costs.*sides)[w], &all = (whole.costs.*sides)[w];
      ASSERT_EQ(ours.size(), kAll - kFirst);
      // The same sums; errors are measured on all rows of either.
      for (size_t t = 0; t < ours.size(); ++t) EXPECT_DOUBLE_EQ(ours[t], all[kFirst + t]);
    }
  }
  EXPECT_EQ(part->attention.mass, whole.attention.mass);
  EXPECT_EQ(part->attention.log_mass, whole.attention.log_mass);
  EXPECT_EQ(part->attention.seen_by, whole.attention.seen_by);
  EXPECT_EQ(part->attention.rows, whole.attention.rows);
  const Result<AttentionStats> alone = MeasureAttention(kv, own, 2, &earlier);
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->mass, whole.attention.mass);
  const AttentionStats tail = alone->From(kFirst);
  EXPECT_EQ(tail.mass, std::vector<double>(alone->mass.begin() + kFirst, alone->mass.end()));
  EXPECT_EQ(tail.rows, alone->rows);
  EXPECT_TRUE(tail.squares.empty());
  // And it makes a difference.
  const Result<AttentionStats> without = MeasureAttention(kv, own, 1);
  ASSERT_TRUE(without);
  EXPECT_GT(without->mass[0], 1.5 * alone->mass[kFirst]);
}

TEST(EarlierRows, ThatCannotBeMadeAreAnError) {
  std::mt19937 random(15);
  TestCache cache(10, Shapes());
  cache.Fill(&random);
  const AttentionWindow window = RandomWindow(&random, cache, 2, 2);
  const auto fill = [](size_t layer, Side, uint32_t, Half* rows) {
    std::fill_n(rows, 3 * 8, Half{0});
    return layer == 1 ? Status(StatusCode::kCorrupt, "no rows") : Status();
  };
  const EarlierRows earlier = {3, fill};
  const Status status = MeasureAttention(cache.view(), window, 1, &earlier).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.message(), "layer 1: no rows");
}

// A probe's own tokens are gone: its queries see what was there before, and less of it where a window has moved on.
TEST(AttentionWindow, QueriesSeeNothingFromItsEndOn) {
  std::mt19937 random(16);
  TestCache cache(20, {{1, 16, 16}, {1, 16, 16}});
  cache.Fill(&random);
  AttentionWindow window = RandomWindow(&random, cache, 4, 2);
  window.last_visible = {19, 22, 26, 40};
  EXPECT_EQ(MeasureAttention(cache.view(), window, 1).status().code(), StatusCode::kInvalidArgument);
  window.end = 20;
  window.layers[1].window = 8;
  for (const size_t first : {0u, 15u}) {
    const EarlierRows earlier = cache.earlier(first);
    AttentionWindow own = window;
    own.end -= static_cast<uint32_t>(first);
    for (uint32_t& last : own.last_visible) last -= static_cast<uint32_t>(first);
    CostOptions options;
    options.earlier = &earlier;
    const Result<MeasuredCosts> measured = MeasureTokenCosts(cache.view_from(first), {}, own, options);
    ASSERT_TRUE(measured) << measured.status().message();
    const AttentionStats& stats = measured->attention;
    EXPECT_EQ(stats.rows, 2.0 * (4 + 3));   // of layer 1 the last query sees nothing
    EXPECT_EQ(stats.seen_by[19], 2.0 * 7);  // 26 - 7 is the first that the third one sees there
    EXPECT_EQ(stats.seen_by[18], 2.0 * 6);
    EXPECT_EQ(stats.seen_by[11], 2.0 * 4);
    double sum = 0;
    for (const double mass : stats.mass) sum += mass;
    EXPECT_NEAR(sum, stats.rows, 1e-4 * stats.rows);
    for (const double cost : measured->costs.keys[0]) EXPECT_TRUE(std::isfinite(cost) && cost > 0);
  }
}

TEST(MeasureAttention, TakesEveryStepthLayerOfEachWindow) {
  std::mt19937 random(17);
  const std::vector<LayerShape> shapes(7, {1, 16, 16});
  TestCache cache(40, shapes);
  cache.Fill(&random);
  AttentionWindow window = RandomWindow(&random, cache, 5, 2);
  for (const size_t layer : {0, 2, 3, 5}) window.layers[layer].window = 10;
  // Without a window: 1, 4, 6; with one: 0, 2, 3, 5.
  for (const auto& [step, kept] : {std::pair{2u, std::vector<size_t>{1, 2, 5, 6}}, {3u, {0, 5, 6}}, {9u, {5, 6}}}) {
    KvView some = cache.view();
    AttentionWindow of;
    of.last_visible = window.last_visible;
    some.layers.clear();
    for (const size_t layer : kept) {
      some.layers.push_back(cache.view().layers[layer]);
      of.layers.push_back(window.layers[layer]);
    }
    const Result<AttentionStats> ours = MeasureAttention(cache.view(), window, 2, nullptr, step);
    const Result<AttentionStats> expected = MeasureAttention(some, of, 1);
    ASSERT_TRUE(ours && expected);
    EXPECT_EQ(ours->mass, expected->mass);
    EXPECT_EQ(ours->seen_by, expected->seen_by);
    EXPECT_EQ(ours->rows, expected->rows);
  }
}

TEST(MixTokenCosts, ScalesBothToOneSum) {
  TokenCosts first = EqualTokenCosts(2), second = EqualTokenCosts(2);
  const std::vector<double> ten = {10, 10}, one_sided = {2, 0};
  ScaleTokenCosts(ten, &first);
  ScaleTokenCosts(one_sided, &second);
  const TokenCosts mixed = MixTokenCosts(first, second, 0.25);
  EXPECT_NEAR(mixed.keys[0][0] + mixed.values[0][0], 0.25 / 2 + 0.75, 1e-12);
  EXPECT_NEAR(mixed.keys[0][1] + mixed.values[0][1], 0.25 / 2, 1e-12);
  EXPECT_EQ(mixed.keys[3], (std::vector<double>{0, 0}));
}

TEST(EqualTokenCosts, AreEqualAndFallWithTheWidth) {
  const TokenCosts costs = EqualTokenCosts(5);
  for (const auto* side : {&costs.keys, &costs.values}) {
    for (size_t w = 0; w < kWidths.size(); ++w) {
      EXPECT_EQ((*side)[w], std::vector<double>(5, (*side)[w][0]));
    }
    for (size_t w = 0; kWidths[w] < 16; ++w) EXPECT_GT((*side)[w][0], (*side)[w + 1][0]);
    EXPECT_EQ((*side)[3][0], 0.0);
  }
  EXPECT_GT(costs.keys[0][0], costs.values[0][0]);  // keys first
}

}  // namespace
}  // namespace qkvshare
