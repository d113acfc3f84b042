#include "policy/policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "policy/allocator.h"
#include "policy/policy_test_util.h"
#include "quant/block.h"

namespace qkvshare {
namespace {

TEST(Policy, NamesGoBothWays) {
  for (const Policy policy : {Policy::kUniform, Policy::kLocal}) {
    const Result<Policy> found = PolicyFromName(PolicyName(policy));
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, policy);
  }
  for (const char* name : {"", "Uniform", "learned"}) {
    const Result<Policy> found = PolicyFromName(name);
    ASSERT_FALSE(found) << name;
    EXPECT_EQ(found.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(found.status().message().find("choose uniform or local"), std::string::npos);
  }
}

// Attention as in a long context: a direction that all queries share, a few tokens whose keys lie along it and share
// most of the weight, and a crowd that shares the rest.
struct Scene {
  static constexpr size_t kTokens = 300, kQueries = 16, kDim = 32;
  static constexpr uint32_t kGroup = 2;
  TestCache cache{kTokens, {{2, kDim, kDim}, {1, kDim, kDim}}};
  AttentionWindow window;    // what the policy sees
  AttentionWindow held_out;  // other queries of the same kind: what it is judged by
  KeyProfiles profiles;

  explicit Scene(uint32_t seed) {
    std::mt19937 random(seed);
    cache.Fill(&random, 0.5f);
    window = RandomWindow(&random, cache, kQueries, kGroup);
    held_out = RandomWindow(&random, cache, kQueries, kGroup);
    std::normal_distribution<float> normal(0, 1);
    for (size_t layer = 0; layer < cache.shapes.size(); ++layer) {
      std::vector<float> direction(kDim);
      for (float& x : direction) x = normal(random);
      for (AttentionWindow* queries : {&window, &held_out}) {
        std::vector<float>& q = queries->layers[layer].q;
        for (size_t i = 0; i < q.size(); ++i) q[i] = 0.7f * q[i] + direction[i % kDim];
      }
      for (int heavy = 0; heavy < 25; ++heavy) {
        const size_t token = kSinkTokens + random() % (kTokens - kSinkTokens - kQueries);
        for (size_t head = 0; head < cache.shapes[layer].kv_heads; ++head) {
          Half* key = cache.row(layer, Side::kKeys, token, head);
          for (size_t c = 0; c < kDim; ++c) key[c] = FloatToHalf(HalfToFloat(key[c]) + 0.25f * direction[c]);
        }
      }
    }
    profiles = MeasureKeyProfiles(cache.view(), kSinkTokens, 1);
  }

  Result<BitPlan> Plan(Policy policy, double bits) const {
    PlanRequest request;
    request.policy = policy;
    request.budget_bytes = BudgetForBits(bits, kTokens, kSinkTokens, ShapesOf(cache.view()));
    return MakePlan(cache.view(), profiles, window, request);
  }

  // The cache after packing and unpacking by this plan.
  TestCache Quantize(const BitPlan& plan) const {
    TestCache out = cache;
    const TokenOrder order = OrderTokens(plan);
    for (size_t layer = 0; layer < cache.shapes.size(); ++layer) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        const BlockLayout layout = BlockLayout::Make(side, kDim, plan.levels, order.level_size);
        for (size_t head = 0; head < cache.shapes[layer].kv_heads; ++head) {
          const ChannelProfile profile = side == Side::kKeys ? profiles[layer][head] : ChannelProfile();
          const BlockCodec codec(ScalarKernels(), side, kDim, profile);
          std::vector<uint8_t> bytes(layout.bytes);
          EXPECT_TRUE(codec.Pack(cache.view().head(layer, side, head), order, layout, bytes.data()).ok());
          EXPECT_TRUE(codec
                          .Unpack(bytes.data(), order, layout, kTokens, out.row(layer, side, 0, head),
                                  cache.shapes[layer].row_values(side))
                          .ok());
        }
      }
    }
    return out;
  }

  // Attention output of one query head of the held-out window.
  std::vector<double> Output(TestCache* rows, size_t layer, size_t query, size_t head) const {
    const LayerQueries& queries = held_out.layers[layer];
    const float* q = &queries.q[(query * queries.heads + head) * kDim];
    std::vector<double> out(kDim, 0.0);
    double total = 0;
    for (size_t t = 0; t <= held_out.last_visible[query]; ++t) {
      double score = 0;
      for (size_t c = 0; c < kDim; ++c)
        score += double{q[c]} * double{HalfToFloat(rows->row(layer, Side::kKeys, t, head / kGroup)[c])};
      const double weight = std::exp(score * double{queries.scale});
      total += weight;
      for (size_t c = 0; c < kDim; ++c)
        out[c] += weight * double{HalfToFloat(rows->row(layer, Side::kValues, t, head / kGroup)[c])};
    }
    for (double& x : out) x /= total;
    return out;
  }

  // Squared error of the attention output relative to its size, mean over layers, heads and held-out queries.
  double TrueError(const BitPlan& plan) const {
    TestCache exact = cache;
    TestCache quantized = Quantize(plan);
    double sum = 0;
    int count = 0;
    for (size_t layer = 0; layer < cache.shapes.size(); ++layer) {
      for (size_t query = 0; query < kQueries; ++query) {
        for (size_t head = 0; head < held_out.layers[layer].heads; ++head, ++count) {
          const std::vector<double> a = Output(&exact, layer, query, head), b = Output(&quantized, layer, query, head);
          double error = 0, size = 0;
          for (size_t c = 0; c < kDim; ++c) error += (a[c] - b[c]) * (a[c] - b[c]), size += a[c] * a[c];
          sum += error / size;
        }
      }
    }
    return sum / count;
  }
};

BitPlan Shuffled(BitPlan plan, uint32_t seed) {
  std::mt19937 random(seed);
  std::shuffle(plan.level_of_token.begin() + kSinkTokens, plan.level_of_token.end(), random);
  return plan;
}

TEST(MakePlan, LocalHasLessErrorThanUniformAndRandomAtEqualBytes) {
  for (const double bits : {5.0, 6.0}) {
    double local_error = 0, uniform_error = 0, random_error = 0;
    for (uint32_t seed = 1; seed <= 4; ++seed) {
      const Scene scene(seed);
      const Result<BitPlan> local = scene.Plan(Policy::kLocal, bits), uniform = scene.Plan(Policy::kUniform, bits);
      ASSERT_TRUE(local) << local.status().message();
      ASSERT_TRUE(uniform) << uniform.status().message();
      const std::vector<LayerShape> shapes = ShapesOf(scene.cache.view());
      const BitPlan random = Shuffled(*local, seed);
      ASSERT_EQ(PlanBytes(random, shapes), PlanBytes(*local, shapes));
      // Both leave less than one step unused; in bytes.
      ASSERT_NEAR(static_cast<double>(PlanBytes(*local, shapes)), static_cast<double>(PlanBytes(*uniform, shapes)),
                  static_cast<double>(TokenBytes(shapes, kLevels[1]) - TokenBytes(shapes, kLevels[0])));
      local_error += scene.TrueError(*local);
      uniform_error += scene.TrueError(*uniform);
      random_error += scene.TrueError(random);
    }
    SCOPED_TRACE(testing::Message() << bits << " bits: local " << local_error << ", uniform " << uniform_error
                                    << ", random " << random_error);
    // Ratios of squared errors over four scenes. Measured: 0.13 to 0.25.
    EXPECT_LT(local_error, 0.7 * uniform_error);
    EXPECT_LT(local_error, 0.7 * random_error);
  }
}

TEST(MakePlan, NamesItsPolicyAndIgnoresTheWindowWhereUniform) {
  const Scene scene(1);
  const Result<BitPlan> local = scene.Plan(Policy::kLocal, 5), uniform = scene.Plan(Policy::kUniform, 5);
  ASSERT_TRUE(local && uniform);
  EXPECT_EQ(local->policy, "local");
  EXPECT_EQ(uniform->policy, "uniform");
  EXPECT_NE(local->level_of_token, uniform->level_of_token);
  PlanRequest request;
  request.budget_bytes = PlanBytes(*uniform, ShapesOf(scene.cache.view()));
  const Result<BitPlan> without = MakePlan(scene.cache.view(), scene.profiles, {}, request);
  ASSERT_TRUE(without);
  EXPECT_EQ(without->level_of_token, uniform->level_of_token);
}

TEST(MakePlan, PassesErrorsOn) {
  const Scene scene(1);
  PlanRequest request;
  request.policy = Policy::kLocal;
  request.budget_bytes = size_t{1} << 30;
  EXPECT_EQ(MakePlan(scene.cache.view(), scene.profiles, {}, request).status().code(), StatusCode::kInvalidArgument);
  request.budget_bytes = 1000;
  EXPECT_EQ(MakePlan(scene.cache.view(), scene.profiles, scene.window, request).status().code(),
            StatusCode::kOutOfRange);
}

TEST(MakePlan, TakesCachesWithoutProfile) {
  // Up to four tokens there is no profile, since all are exact.
  std::mt19937 random(3);
  for (size_t tokens = 1; tokens <= kSinkTokens + 1; ++tokens) {
    TestCache cache(tokens, {{2, 16, 16}});
    cache.Fill(&random);
    PlanRequest request;
    request.policy = Policy::kLocal;
    request.budget_bytes = BudgetForBits(4, tokens, kSinkTokens, ShapesOf(cache.view()));
    const Result<BitPlan> plan = MakePlan(cache.view(), MeasureKeyProfiles(cache.view(), kSinkTokens, 1),
                                          RandomWindow(&random, cache, 1, 2), request);
    ASSERT_TRUE(plan) << plan.status().message();
    EXPECT_EQ(plan->tokens(), tokens);
    EXPECT_EQ(plan->level(0), kExactLevel);
    if (tokens > kSinkTokens) {
      EXPECT_EQ(plan->level(kSinkTokens), kLevels[0]);
    }
  }
}

}  // namespace
}  // namespace qkvshare
