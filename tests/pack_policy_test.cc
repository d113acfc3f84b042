// Cards of every policy and feature, from sessions on tiny models.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "agents/schedule.h"
#include "agents/topology_file.h"
#include "policy/allocator.h"
#include "runtime/probe_queries.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

constexpr size_t kTokens = 300;

class PackPolicyTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    model_ = LoadTiny({});
    session_ = MakeSession(*model_);
    const std::vector<int32_t> tokens = SomeTokens(kTokens);
    PredictionMeter meter(*model_, tokens);
    PrefillOptions prefill;
    prefill.window = kWindowTokens;
    prefill.window_stride = kWindowStride;
    prefill.logits = [&](size_t token, const float* logits) { meter.Add(token, logits); };
    ASSERT_TRUE(session_->Prefill(tokens, prefill).ok());
    options_.code_bits = 3;
    options_.predictions = meter.Take();
    options_.segments = {{"system", "A", "", 0, 100, {{"B", 1}}}, {"user", "A", "", 100, 200, {{"C", 2}}}};
    options_.anchors = {{40, 0.1f}, {200, 0.05f}};
  }

  Card Pack(const PackOptions& options) const {
    PackTimes times;
    return Take(Card::FromBytes(Take(PackSession(*session_, options, &times)).Bytes()));
  }
  Card Pack(Policy policy) const {
    PackOptions options = options_;
    options.policy = policy;
    return Pack(options);
  }
  static std::vector<LayerShape> Shapes(const Card& card) {
    std::vector<LayerShape> shapes;
    for (size_t layer = 0; layer < card.layers(); ++layer) shapes.push_back(card.shape(layer));
    return shapes;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
  PackOptions options_;
};

TEST_F(PackPolicyTest, EveryPolicyKeepsToTheBudgetAndIsNamed) {
  for (const auto& [policy, name] : {std::pair{Policy::kUniform, "uniform"},
                                     {Policy::kLocal, "local"},
                                     {Policy::kTopology, "topology, alpha 0.5"},
                                     {Policy::kRandom, "random of local, seed 1"},
                                     {Policy::kInverted, "inverted of local"}}) {
    SCOPED_TRACE(name);
    const Card card = Pack(policy);
    const std::vector<LayerShape> shapes = Shapes(card);
    EXPECT_EQ(card.info().policy, name);
    EXPECT_LE(PlanBytes(card.plan(), shapes), BudgetForBits(3, kTokens, {}, shapes));
    EXPECT_GT(PlanBytes(card.plan(), shapes) + TokenBytes(shapes, {8, 8}), BudgetForBits(3, kTokens, {}, shapes));
    const auto receiver = MakeSession(*model_);
    EXPECT_TRUE(Restore(card, kTokens, receiver.get()).ok());
  }
}

TEST_F(PackPolicyTest, KeysAreRoundedByQueriesWhereThereAreSome) {
  const KvState rows = Take(session_->TakeKv());
  // What the kept queries see of the errors of all keys, squared.
  const auto seen = [&](const Card& card) {
    double sum = 0;
    for (size_t layer = 0; layer < card.layers(); ++layer) {
      const LayerQueries& queries = session_->window().layers[layer];
      const size_t dim = queries.dim;
      const size_t heads = card.shape(layer).kv_heads;
      std::vector<Half> keys(kTokens * heads * dim);
      EXPECT_TRUE(card.Unpack(ScalarKernels(), layer, Side::kKeys, kTokens, keys.data()).ok());
      for (size_t row = 0; row < session_->window().queries() * queries.heads; ++row) {
        const auto head = static_cast<uint32_t>(row % queries.heads / (queries.heads / heads));
        for (size_t t = 0; t < kTokens; ++t) {
          const Half* exact = rows.view().head(layer, Side::kKeys, head).row(t);
          double error = 0;
          for (size_t c = 0; c < dim; ++c) {
            error += static_cast<double>(queries.q[row * dim + c]) *
                     (HalfToFloat(keys[(t * heads + head) * dim + c]) - HalfToFloat(exact[c]));
          }
          sum += error * error;
        }
      }
    }
    return sum;
  };
  PackOptions options = options_;
  for (const double bits : {2, 4}) {
    options.code_bits = bits;
    options.rounding = KeyRounding::kAuto;
    const Card by_queries = Pack(options);
    EXPECT_EQ(by_queries.info().rounding, "queries");
    options.rounding = KeyRounding::kNearest;
    const Card nearest = Pack(options);
    EXPECT_EQ(nearest.info().rounding, "nearest");
    EXPECT_EQ(nearest.payload_bytes(), by_queries.payload_bytes());
    EXPECT_LT(seen(by_queries), 0.95 * seen(nearest));  // a random model's queries have all directions
  }
  options.code_bits = 8;
  options.rounding = KeyRounding::kAuto;
  EXPECT_EQ(Pack(options).info().rounding, "nearest");
}

TEST_F(PackPolicyTest, WithoutQueriesKeysAreRoundedToTheNearest) {
  const auto session = MakeSession(*model_);
  ASSERT_TRUE(session->Prefill(SomeTokens(kTokens), {}).ok());
  PackOptions options;
  PackTimes times;
  const Card card = Take(Card::FromBytes(Take(PackSession(*session, options, &times)).Bytes()));
  EXPECT_EQ(card.info().rounding, "nearest");
  options.rounding = KeyRounding::kQueries;
  const Result<PackedCard> refused = PackSession(*session, options, &times);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("nearest"), std::string::npos) << refused.status().message();
}

TEST_F(PackPolicyTest, ControlsHaveTheHistogramOfTheirPolicy) {
  for (const Policy of : {Policy::kLocal, Policy::kTopology}) {
    const Card base = Pack(of);
    for (const Policy control : {Policy::kRandom, Policy::kInverted}) {
      PackOptions options = options_;
      options.policy = control;
      options.control_of = of;
      const Card card = Pack(options);
      EXPECT_EQ(card.plan().levels, base.plan().levels);
      EXPECT_EQ(card.order().level_size, base.order().level_size);
      EXPECT_NE(card.plan().level_of_token, base.plan().level_of_token);
    }
  }
}

TEST_F(PackPolicyTest, EveryFeatureCountsAndIsInTheCard) {
  PackOptions options = options_;
  options.policy = Policy::kTopology;
  const FeatureSet all = Take(ParseFeatures("full,-probe"));
  options.features = all;
  const Card full = Pack(options);
  EXPECT_EQ(full.info().features, all.Names());
  for (const std::string& name : all.Names()) {
    options.features = Take(ParseFeatures("full,-probe,-" + name));
    const Card without = Pack(options);
    EXPECT_NE(without.plan().level_of_token, full.plan().level_of_token) << name;
    EXPECT_EQ(without.info().features.size() + 1, all.Names().size());
  }
}

// Whatever is known of the receivers counts: another anchor, instruction, reader or edge gives another plan, and the
// same ones the same.
TEST_F(PackPolicyTest, AnchorsInstructionsReadersAndEdgesChangeThePlan) {
  PackOptions options = options_;
  options.policy = Policy::kTopology;
  std::vector<std::vector<uint8_t>> seen;
  const auto expect_new = [&](const std::string& what) {
    const std::vector<uint8_t> levels = Pack(options).plan().level_of_token;
    EXPECT_EQ(std::ranges::count(seen, levels), 0) << what;
    EXPECT_EQ(Pack(options).plan().level_of_token, levels) << what;
    seen.push_back(levels);
  };
  expect_new("what there is");
  options.anchors[0].token = 140;
  expect_new("another anchor");
  options.anchors[0].weight = 0.02f;
  expect_new("of another weight");
  options.segments[0].readers[0].distance = 5;
  expect_new("a reader farther away");
  options.segments[0].readers[0].distance = 1;
  options.segments[1].readers.push_back({"D", 3});
  expect_new("one more reader");
  for (const char* edges : {"{from: A, to: B}, {from: A, to: C}", "{from: A, to: B}, {from: B, to: C}"}) {
    const Topology topology = Take(ParseTopology(
        fmt::format("{{agents: {{A: {{prompt: p}}, B: {{prompt: p}}, C: {{prompt: p}}}}, edges: [{}]}}", edges), "t"));
    options.segments[1].readers = ReadersOf(topology, Take(MakeSchedule(topology)), 0);
    ASSERT_EQ(options.segments[1].readers.size(), 2u);
    expect_new(edges);
  }
  for (const int32_t first : {7, 70}) {
    const std::vector<std::vector<int32_t>> instructions = {SomeTokens(30, first)};
    options.probe = Take(ProbeWindow(session_.get(), instructions));
    expect_new("an instruction");
    EXPECT_EQ(Pack(options).info().features.back(), "probe");
  }
}

TEST_F(PackPolicyTest, WritesItsOwnAnchors) {
  const Card card = Pack(Policy::kLocal);
  ASSERT_EQ(card.anchors().size(), 64u);
  double sum = 0;
  for (const Anchor& anchor : card.anchors()) {
    EXPECT_GE(anchor.token, kSinkTokens);
    sum += double{anchor.weight};
  }
  EXPECT_LT(sum, 1.0);
  EXPECT_GT(sum, 64.0 / kTokens);  // those of the most attended tokens
  const auto plain = MakeSession(*model_);
  Prefill(plain.get(), SomeTokens(50));
  EXPECT_TRUE(PackCard(*plain, 4).anchors().empty());  // no window, no anchors
}

// A query's weights are shares of all that it sees, so that heads that look at the parent's tokens count for less.
TEST_F(PackPolicyTest, ADeltaCardIsPlannedByAttentionOverTheWholeContext) {
  const auto middle = MakeSession(*model_, FusedOptions());
  ASSERT_TRUE(middle->AttachCards({Place(Pack(Policy::kUniform))}).ok());
  PrefillOptions prefill;
  prefill.window = kWindowTokens;
  ASSERT_TRUE(middle->Prefill(SomeTokens(60, 3), prefill).ok());
  PackOptions options;
  options.policy = Policy::kLocal;
  PackTimes times;
  const Card delta = Take(Card::FromBytes(Take(PackSession(*middle, options, &times)).Bytes()));
  EXPECT_EQ(delta.info().policy, "local");
  EXPECT_EQ(delta.first_token(), kTokens);
  EXPECT_EQ(delta.plan().tokens(), 60u);
  EXPECT_GT(delta.plan().levels.size(), 2u);
  // As the same rows would be that know nothing of a parent.
  const KvState state = Take(middle->TakeKv());
  const KvView kv = state.view();
  const Transferability none;
  PlanRequest request;
  request.policy = Policy::kLocal;
  request.limits.fixed.first = 0;
  request.limits.budget_bytes = BudgetForBits(4, kv.tokens, request.limits.fixed, ShapesOf(kv));
  const KeyProfiles profiles = delta.key_profiles();
  const PlanInput alone = {kv, profiles, middle->window(), delta.token_ids(), {}, none};
  const BitPlan plan = Take(MakePlan(Take(MeasurePlanCosts(alone, request)), ShapesOf(kv), request));
  EXPECT_EQ(plan.levels, delta.plan().levels);
  EXPECT_NE(plan.level_of_token, delta.plan().level_of_token);
}

TEST_F(PackPolicyTest, ProtectsTheLastTokens) {
  for (const Policy policy : {Policy::kUniform, Policy::kLocal, Policy::kRandom, Policy::kInverted}) {
    PackOptions options = options_;
    options.policy = policy;
    options.protected_tokens = 32;
    const Card card = Pack(options);
    EXPECT_EQ(card.protected_tokens(), 32u);
    for (size_t t = kTokens - 32; t < kTokens; ++t) ASSERT_EQ(card.plan().level(t), kExactLevel);
    const std::vector<LayerShape> shapes = Shapes(card);
    EXPECT_LE(PlanBytes(card.plan(), shapes), BudgetForBits(3, kTokens, {4, 32}, shapes));
  }
}

TEST_F(PackPolicyTest, LimitsHoldTogether) {
  PackOptions options = options_;
  options.policy = Policy::kLocal;
  options.levels = {{4, 2}, {4, 4}};
  options.layers = {{0, 1}, {0, 0}};
  options.protected_tokens = 8;
  options.max_bytes = 95000;
  PackTimes times;
  const Result<PackedCard> packed = PackSession(*session_, options, &times);
  ASSERT_TRUE(packed) << packed.status().message();
  EXPECT_LE(packed->file_bytes(), options.max_bytes);
  const Card card = Take(Card::FromBytes(packed->Bytes()));
  EXPECT_EQ(card.plan().layers, options.layers);
  options.max_bytes = 20000;
  const Status status = PackSession(*session_, options, &times).status();
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("K4V2"), std::string::npos) << status.message();
}

TEST_F(PackPolicyTest, APolicyWithoutAChoiceIsRefusedByName) {
  PackTimes times;
  const auto refused = [&](const Session& session, const PackOptions& options, const std::string& says) {
    const Status status = PackSession(session, options, &times).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(PolicyName(options.policy)), std::string::npos) << status.message();
  };
  PackOptions options = options_;
  for (const Policy policy : {Policy::kLocal, Policy::kTopology, Policy::kRandom, Policy::kInverted}) {
    options.policy = policy;
    options.code_bits = 2;
    refused(*session_, options, "more than 2 and less than 16 bits");
    options.code_bits = 16;
    refused(*session_, options, "more than 2 and less than 16 bits");
  }
  options = options_;
  options.policy = Policy::kLocal;
  options.protected_tokens = kTokens;
  refused(*session_, options, "of 300 tokens, 300 stay exact");
  options = {};
  options.policy = Policy::kLocal;
  const auto tiny = MakeSession(*model_);
  PrefillOptions prefill;
  prefill.window = kWindowTokens;
  ASSERT_TRUE(tiny->Prefill(SomeTokens(3), prefill).ok());
  refused(*tiny, options, "of 3 tokens, 3 stay exact");
}

TEST_F(PackPolicyTest, AnyProtectedWindowIsCutToTheTokensThereAre) {
  for (const size_t last : {kTokens, kTokens + 1, SIZE_MAX}) {
    PackOptions options = options_;
    options.protected_tokens = last;
    const Card card = Pack(options);
    EXPECT_EQ(card.protected_tokens(), kTokens);
    for (size_t t = 0; t < kTokens; ++t) ASSERT_EQ(card.plan().level(t), kExactLevel) << last;
  }
}

TEST_F(PackPolicyTest, OptionsThatNothingCouldBeMadeOfAreRefused) {
  const auto refused = [&](const std::string& text, const PackOptions& options) {
    PackTimes times;
    const Status status = PackSession(*session_, options, &times).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  PackOptions options = options_;
  options.levels = {{4, 4}};
  options.code_bits = 8;
  refused("8 bits are more than K4V4 takes", options);
  options.code_bits = 4;
  options.policy = Policy::kLocal;
  refused("K4V4 is the only level", options);
  options = options_;
  options.layers = {{1, 0}};
  refused("widths of 1 layers, but the model has 2", options);
}

}  // namespace
}  // namespace qkvshare
