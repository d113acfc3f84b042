#include "policy/policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "policy/allocator.h"
#include "policy/controller.h"
#include "policy/policy_test_util.h"
#include "quant/block.h"

namespace qkvshare {
namespace {

TEST(Policy, NamesGoBothWays) {
  for (const Policy policy :
       {Policy::kUniform, Policy::kLocal, Policy::kTopology, Policy::kLearned, Policy::kRandom, Policy::kInverted}) {
    const Result<Policy> found = PolicyFromName(PolicyName(policy));
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, policy);
  }
  for (const char* name : {"", "Uniform", "trained"}) {
    const Result<Policy> found = PolicyFromName(name);
    ASSERT_FALSE(found) << name;
    EXPECT_EQ(found.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(found.status().message().find("choose uniform, local, topology, learned, random or inverted"),
              std::string::npos);
  }
}

struct Planned {
  BitPlan plan;
  std::vector<std::string> features;
  std::vector<Anchor> anchors;
};

// Attention as in a long context: a direction that all queries share, a few tokens whose keys lie along it and share
// most of the weight, and a crowd that shares the rest.
struct Scene {
  static constexpr size_t kTokens = 300, kQueries = 16, kDim = 32;
  static constexpr uint32_t kGroup = 2;
  TestCache cache{kTokens, {{2, kDim, kDim}, {1, kDim, kDim}}};
  AttentionWindow window;    // what the policy sees
  AttentionWindow held_out;  // other queries of the same kind: what it is judged by
  KeyProfiles profiles;
  std::vector<int32_t> token_ids;
  std::vector<TokenPrediction> predictions;
  Transferability transfer;

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
    std::uniform_real_distribution<float> uniform(0, 1);
    for (size_t t = 0; t < kTokens; ++t) {
      token_ids.push_back(static_cast<int32_t>(std::pow(300.0f, uniform(random))));
      predictions.push_back({std::log(uniform(random) + 0.01f), 5 * uniform(random)});
    }
  }

  PlanRequest Request(Policy policy, double bits) const {
    PlanRequest request;
    request.policy = policy;
    request.limits.budget_bytes = BudgetForBits(bits, kTokens, request.limits.fixed, ShapesOf(cache.view()));
    return request;
  }
  Result<Planned> Make(const PlanRequest& request) const {
    const KvView kv = cache.view();
    QKV_ASSIGN_OR_RETURN(PlanCosts measured,
                         MeasurePlanCosts({kv, profiles, window, token_ids, predictions, transfer}, request));
    QKV_ASSIGN_OR_RETURN(BitPlan plan, MakePlan(measured, ShapesOf(kv), request));
    return Planned{std::move(plan), std::move(measured.features), std::move(measured.anchors)};
  }
  Result<BitPlan> Plan(Policy policy, double bits) const {
    QKV_ASSIGN_OR_RETURN(const Planned planned, Make(Request(policy, bits)));
    return planned.plan;
  }

  // The cache after packing and unpacking by this plan.
  TestCache Quantize(const BitPlan& plan) const {
    TestCache out = cache;
    const TokenOrder order = OrderTokens(plan);
    for (size_t layer = 0; layer < cache.shapes.size(); ++layer) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        const BlockLayout layout = BlockLayout::Make(kDim, plan.SideBitsOf(layer, side), order.level_size);
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

std::vector<uint32_t> Histogram(const BitPlan& plan) { return OrderTokens(plan).level_size; }

TEST(MakePlan, LocalHasLessErrorThanUniformAndControlsAtEqualBytes) {
  for (const double bits : {2.5, 3.0, 5.0, 6.0}) {
    double local_error = 0, uniform_error = 0, random_error = 0, inverted_error = 0;
    for (uint32_t seed = 1; seed <= 4; ++seed) {
      const Scene scene(seed);
      const Result<BitPlan> local = scene.Plan(Policy::kLocal, bits), uniform = scene.Plan(Policy::kUniform, bits);
      const Result<BitPlan> random = scene.Plan(Policy::kRandom, bits), inverted = scene.Plan(Policy::kInverted, bits);
      ASSERT_TRUE(local) << local.status().message();
      ASSERT_TRUE(uniform) << uniform.status().message();
      ASSERT_TRUE(random && inverted);
      const std::vector<LayerShape> shapes = ShapesOf(scene.cache.view());
      ASSERT_EQ(PlanBytes(*random, shapes), PlanBytes(*local, shapes));
      ASSERT_EQ(PlanBytes(*inverted, shapes), PlanBytes(*local, shapes));
      // Both leave less than one step unused; in bytes.
      ASSERT_NEAR(static_cast<double>(PlanBytes(*local, shapes)), static_cast<double>(PlanBytes(*uniform, shapes)),
                  static_cast<double>(TokenBytes(shapes, {8, 4}) - TokenBytes(shapes, {4, 4})));
      local_error += scene.TrueError(*local);
      uniform_error += scene.TrueError(*uniform);
      random_error += scene.TrueError(*random);
      inverted_error += scene.TrueError(*inverted);
    }
    SCOPED_TRACE(testing::Message() << bits << " bits: local " << local_error << ", uniform " << uniform_error
                                    << ", random " << random_error << ", inverted " << inverted_error);
    // Ratios of squared errors over four scenes.
    EXPECT_LT(local_error, 0.9 * uniform_error);
    EXPECT_LT(local_error, 0.7 * random_error);
    EXPECT_LT(random_error, inverted_error);
  }
}

TEST(MakePlan, NamesItsPolicyAndIgnoresTheWindowWhereUniform) {
  Scene scene(1);
  const Planned uniform = *scene.Make(scene.Request(Policy::kUniform, 5));
  EXPECT_EQ(uniform.plan.policy, "uniform");
  EXPECT_TRUE(uniform.features.empty());
  EXPECT_FALSE(uniform.anchors.empty());
  const Planned local = *scene.Make(scene.Request(Policy::kLocal, 5));
  EXPECT_EQ(local.plan.policy, "local");
  EXPECT_EQ(local.features, std::vector<std::string>{"attention"});
  EXPECT_NE(local.plan.level_of_token, uniform.plan.level_of_token);
  EXPECT_NE(local.anchors, uniform.anchors);  // of all layers, and of every fourth
  scene.window = {};
  const Planned without = *scene.Make(scene.Request(Policy::kUniform, 5));
  EXPECT_EQ(without.plan.level_of_token, uniform.plan.level_of_token);
  EXPECT_TRUE(without.anchors.empty());
}

TEST(MakePlan, ControlsKeepHistogramAndFixedTokens) {
  const Scene scene(2);
  for (const Policy policy : {Policy::kRandom, Policy::kInverted}) {
    PlanRequest request = scene.Request(Policy::kLocal, 3.5);
    request.limits.fixed = {4, 20};
    const BitPlan local = scene.Make(request)->plan;
    request.policy = policy;
    const BitPlan control = scene.Make(request)->plan;
    EXPECT_EQ(Histogram(control), Histogram(local));
    EXPECT_NE(control.level_of_token, local.level_of_token);
    for (size_t t = 0; t < Scene::kTokens; ++t) {
      if (request.limits.fixed.contains(t, Scene::kTokens)) {
        EXPECT_EQ(control.level(t), kExactLevel);
      }
    }
    EXPECT_EQ(control.policy, policy == Policy::kRandom ? "random of local, seed 1" : "inverted of local");
    EXPECT_EQ(scene.Make(request)->plan.level_of_token, control.level_of_token);  // deterministic
    request.seed = 2;
    EXPECT_EQ(scene.Make(request)->plan.level_of_token == control.level_of_token, policy == Policy::kInverted);
  }
}

TEST(MakePlan, EveryFeatureChangesThePlanAndIsNamed) {
  Scene scene(3);
  scene.transfer.segments = {{0, 100, {1}}, {100, 200, {3}}};
  scene.transfer.anchors = {{50, 0.2f}, {150, 0.1f}};
  std::mt19937 random(5);
  scene.transfer.probe = RandomWindow(&random, scene.cache, 4, Scene::kGroup);
  PlanRequest request = scene.Request(Policy::kTopology, 3);
  request.features = FullFeatures();
  const Planned full = *scene.Make(request);
  EXPECT_EQ(full.features.size(), size_t{kFeatureCount});
  EXPECT_EQ(full.plan.policy, "topology, alpha 0.5");
  for (int i = 0; i < kFeatureCount; ++i) {
    const auto feature = static_cast<Feature>(i);
    SCOPED_TRACE(FeatureName(feature));
    request.features = FullFeatures();
    request.features.Set(feature, false);
    const Planned without = *scene.Make(request);
    EXPECT_NE(without.plan.level_of_token, full.plan.level_of_token);
    EXPECT_EQ(without.features, request.features.Names());
  }
}

TEST(MakePlan, ReadersAndAnchorsMoveBits) {
  Scene scene(4);
  PlanRequest request = scene.Request(Policy::kTopology, 3);
  const auto half = [](const BitPlan& plan, bool second) {
    size_t bits = 0;
    for (size_t t = second ? 150 : kSinkTokens; t < (second ? 300u : 150u); ++t)
      bits += plan.level(t).key_bits + size_t{plan.level(t).value_bits};
    return bits;
  };
  scene.transfer.segments = {{0, 150, {1}}, {150, 150, {4}}};
  const BitPlan first = scene.Make(request)->plan;
  scene.transfer.segments = {{0, 150, {4}}, {150, 150, {1}}};
  const BitPlan second = scene.Make(request)->plan;
  EXPECT_GT(half(first, false), half(second, false));
  EXPECT_LT(half(first, true), half(second, true));
  request.alpha = 1;  // then it is local
  EXPECT_EQ(scene.Make(request)->plan.level_of_token, scene.Plan(Policy::kLocal, 3)->level_of_token);
  request.alpha = 0.5;
  scene.transfer.segments = {};
  scene.transfer.anchors = {{77, 0.5f}};
  EXPECT_GT(scene.Make(request)->plan.level(77).key_bits, 2);
  EXPECT_EQ(scene.Make(request)->features, (std::vector<std::string>{"attention", "anchors"}));
}

// A probe's queries look at their own tokens too, if these are there: what they give those is not the context's.
TEST(MakePlan, ProbeRowsTakeTheirShareButNoBits) {
  Scene scene(3);
  constexpr size_t kOwn = Scene::kQueries;
  const KvView all = scene.cache.view();
  KvView context = all;
  context.tokens = Scene::kTokens - kOwn;
  PlanRequest request = scene.Request(Policy::kTopology, 3);
  request.alpha = 0;
  request.features = *ParseFeatures("attention,probe");
  AttentionWindow own = scene.window;
  own.end = static_cast<uint32_t>(context.tokens);
  scene.token_ids.resize(context.tokens);
  Transferability transfer;
  transfer.probe = scene.held_out;
  const PlanInput input{context, scene.profiles, own, scene.token_ids, {}, transfer};
  EXPECT_EQ(MeasurePlanCosts(input, request).status().code(), StatusCode::kInvalidArgument);  // they see too much
  transfer.probe_rows = all;
  const Result<PlanCosts> measured = MeasurePlanCosts(input, request);
  ASSERT_TRUE(measured) << measured.status().message();
  ASSERT_EQ(measured->costs.tokens(), context.tokens);
  const Result<MeasuredCosts> expected = MeasureTokenCosts(all, scene.profiles, scene.held_out, {});
  ASSERT_TRUE(expected);
  const double scale = measured->costs.keys[0][10] / expected->costs.keys[0][10];
  for (size_t t = 0; t < context.tokens; ++t) {
    EXPECT_NEAR(measured->costs.values[0][t], scale * expected->costs.values[0][t], 1e-9);
    EXPECT_NEAR(measured->costs.keys[1][t], scale * expected->costs.keys[1][t], 1e-9);
  }
  transfer.probe_rows.tokens = context.tokens - 1;
  EXPECT_EQ(MeasurePlanCosts(input, request).status().code(), StatusCode::kInvalidArgument);
}

// Of three inputs, one of which needs the output layer.
std::shared_ptr<const Controller> SomeController() {
  ControllerWeights weights;
  weights.inputs = {ControllerInput::kVariance, ControllerInput::kRarity, ControllerInput::kConfidence};
  weights.offsets = {0.01, 0.01, 0.01};
  weights.means = {0, 1, -1};
  weights.scales = {1, 0.5, 2};
  weights.hidden = {{1, 0, 0.5}, {0, 2, -1}};
  weights.hidden_bias = {0, 0.5};
  weights.output = {2, 1};
  weights.output_bias = -3;
  return std::make_shared<const Controller>(*Controller::Make("some", weights));
}

PlanRequest Learned(const Scene& scene, double bits) {
  PlanRequest request = scene.Request(Policy::kLearned, bits);
  request.controller = SomeController();
  request.features = request.controller->features();
  return request;
}

// At the narrowest level a token costs what the controller says; over the widths it falls as measured.
TEST(MakePlan, LearnedCostsAreTheControllers) {
  const Scene scene(3);
  const KvView kv = scene.cache.view();
  const PlanInput input{kv, scene.profiles, scene.window, scene.token_ids, scene.predictions, scene.transfer};
  const PlanRequest request = Learned(scene, 3);
  const Result<PlanCosts> learned = MeasurePlanCosts(input, request);
  ASSERT_TRUE(learned) << learned.status().message();
  const Result<PlanCosts> local = MeasurePlanCosts(input, scene.Request(Policy::kLocal, 3));
  CostOptions options;
  options.spread = true;
  const Result<MeasuredCosts> measured = MeasureTokenCosts(kv, scene.profiles, scene.window, options);
  ASSERT_TRUE(local && measured);
  const ControllerFacts facts{measured->attention, measured->costs, Scene::kTokens, scene.token_ids, scene.predictions};
  const auto columns = ControllerColumns(facts, request.controller->weights().inputs);
  ASSERT_TRUE(columns);
  const std::vector<double> predicted = request.controller->Predict(*columns);
  for (size_t t = 0; t < Scene::kTokens; ++t) {
    const double closed = local->costs.keys[0][t] + local->costs.values[0][t];
    if (closed == 0) continue;  // seen by no query
    EXPECT_NEAR(learned->costs.keys[0][t] + learned->costs.values[0][t], predicted[t], 1e-9 * predicted[t]);
    for (size_t i = 0; i < kWidths.size(); ++i) {
      const double expected = predicted[t] * local->costs.keys[i][t] / closed;
      EXPECT_NEAR(learned->costs.keys[i][t], expected, 1e-9 * expected);
    }
  }
  EXPECT_EQ(learned->features, (std::vector<std::string>{"variance", "rarity", "confidence"}));
  EXPECT_FALSE(learned->anchors.empty());
}

TEST(MakePlan, LearnedHasControlsAtEqualBytes) {
  const Scene scene(4);
  PlanRequest request = Learned(scene, 3);
  const BitPlan learned = scene.Make(request)->plan;
  EXPECT_EQ(learned.policy, "learned by some");
  EXPECT_NE(learned.level_of_token, scene.Plan(Policy::kLocal, 3)->level_of_token);
  request.control_of = Policy::kLearned;
  for (const Policy policy : {Policy::kRandom, Policy::kInverted}) {
    request.policy = policy;
    const BitPlan control = scene.Make(request)->plan;
    EXPECT_EQ(Histogram(control), Histogram(learned));
    EXPECT_NE(control.level_of_token, learned.level_of_token);
    EXPECT_EQ(control.policy,
              policy == Policy::kRandom ? "random of learned by some, seed 1" : "inverted of learned by some");
  }
}

TEST(MakePlan, RefusesWhatItCannotHave) {
  Scene scene(1);
  std::mt19937 random(1);
  const auto refused = [&](const PlanRequest& request, const std::string& says) {
    const Result<Planned> planned = scene.Make(request);
    ASSERT_FALSE(planned) << says;
    EXPECT_EQ(planned.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(planned.status().message().find(says), std::string::npos) << planned.status().message();
  };
  PlanRequest request = scene.Request(Policy::kTopology, 3);
  refused(request, "knows nothing of the receivers");
  request.features = *ParseFeatures("attention,anchors");
  refused(request, "feature anchors");
  request.policy = Policy::kLocal;
  refused(request, "counts in policy topology only");
  request.policy = Policy::kUniform;
  refused(request, "looks at no features");
  request = scene.Request(Policy::kRandom, 3);
  request.control_of = Policy::kUniform;
  refused(request, "no control of uniform");
  request = scene.Request(Policy::kTopology, 3);
  for (const double alpha : {-0.1, 1.1, std::nan("")}) {
    request.alpha = alpha;
    refused(request, "alpha");
  }
  request = scene.Request(Policy::kLocal, 3);
  request.features = *ParseFeatures("+confidence");
  scene.predictions.pop_back();
  refused(request, "logits of every token");
  request.features = DefaultFeatures();
  scene.token_ids.pop_back();
  refused(request, "token id");
  scene.window = {};
  scene.token_ids.push_back(1);
  refused(request, "no queries");
  request = scene.Request(Policy::kLearned, 3);
  refused(request, "goes by a controller");
  request.controller = SomeController();
  refused(request, "give no others");
  request.features = request.controller->features();
  scene.predictions.clear();
  scene.window = RandomWindow(&random, scene.cache, 4, 2);
  refused(request, "the controller looks at confidence");
  request = scene.Request(Policy::kUniform, 3);
  request.limits.budget_bytes = 1000;
  EXPECT_EQ(scene.Make(request).status().code(), StatusCode::kOutOfRange);
}

TEST(MakePlan, TakesCachesWithoutProfile) {
  // Up to four tokens there is no profile, since all are exact.
  std::mt19937 random(3);
  for (size_t tokens = 1; tokens <= kSinkTokens + 1; ++tokens) {
    TestCache cache(tokens, {{2, 16, 16}});
    cache.Fill(&random);
    PlanRequest request;
    request.policy = Policy::kLocal;
    request.limits.budget_bytes = BudgetForBits(4, tokens, {}, ShapesOf(cache.view()));
    const KvView kv = cache.view();
    const KeyProfiles profiles = MeasureKeyProfiles(kv, kSinkTokens, 1);
    const AttentionWindow window = RandomWindow(&random, cache, 1, 2);
    const std::vector<int32_t> token_ids(tokens, 7);
    const Transferability transfer;
    const Result<PlanCosts> measured = MeasurePlanCosts({kv, profiles, window, token_ids, {}, transfer}, request);
    ASSERT_TRUE(measured) << measured.status().message();
    const Result<BitPlan> plan = MakePlan(*measured, ShapesOf(kv), request);
    ASSERT_TRUE(plan) << plan.status().message();
    EXPECT_EQ(plan->tokens(), tokens);
    EXPECT_EQ(plan->level(0), kExactLevel);
    if (tokens > kSinkTokens) {
      EXPECT_EQ(plan->level(kSinkTokens), (Level{4, 4}));
    }
  }
}

}  // namespace
}  // namespace qkvshare
