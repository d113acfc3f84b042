#include "policy/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <utility>

#include "policy/anchors.h"
#include "policy/controller.h"
#include "policy/score.h"
#include "policy/token_costs.h"

namespace qkvshare {
namespace {

constexpr std::array<const char*, 6> kNames = {"uniform", "local", "topology", "learned", "random", "inverted"};

std::vector<size_t> FreeTokens(size_t tokens, FixedTokens fixed) {
  std::vector<size_t> free;
  for (size_t t = 0; t < tokens; ++t) {
    if (!fixed.contains(t, tokens)) free.push_back(t);
  }
  return free;
}

// Fisher and Yates. The standard library's shuffle differs between libraries.
void Shuffle(uint64_t seed, std::vector<size_t>* tokens) {
  std::mt19937_64 random(seed);
  for (size_t i = tokens->size(); i > 1; --i) std::swap((*tokens)[i - 1], (*tokens)[random() % i]);
}

// Gives the level of each free token to another one: the same histogram, so the same bytes.
void Rearrange(const TokenCosts& costs, const PlanRequest& request, BitPlan* plan) {
  const std::vector<uint8_t> before = plan->level_of_token;
  std::vector<size_t> from = FreeTokens(before.size(), request.limits.fixed);
  std::vector<size_t> to = from;
  if (request.policy == Policy::kRandom) {
    Shuffle(request.seed, &to);
  } else {
    const auto importance = [&](size_t t) { return costs.keys[0][t] + costs.values[0][t]; };
    std::sort(from.begin(), from.end(),
              [&](size_t a, size_t b) { return std::pair(importance(a), a) < std::pair(importance(b), b); });
    to.assign(from.rbegin(), from.rend());
  }
  for (size_t i = 0; i < from.size(); ++i) plan->level_of_token[to[i]] = before[from[i]];
}

Result<PlanCosts> UniformCosts(const PlanInput& input, const PlanRequest& request) {
  PlanCosts equal;
  equal.costs = EqualTokenCosts(input.kv.tokens);
  if (input.window.empty()) return equal;
  QKV_ASSIGN_OR_RETURN(const AttentionStats stats,
                       MeasureAttention(input.kv, input.window, request.threads, input.earlier, kAnchorLayerStep));
  equal.anchors = MakeAnchors(stats);
  return equal;
}

// Of the tokens to pack, by what the probe's queries see.
Result<TokenCosts> ProbeCosts(const PlanInput& input, const CostOptions& options) {
  const KvView& rows = input.transfer.probe_rows;
  const KvView& seen = rows.tokens > 0 ? rows : input.kv;
  if (seen.tokens < input.kv.tokens) {
    return Status(StatusCode::kInvalidArgument, "plan: the probe's queries see fewer rows than there are to pack");
  }
  QKV_ASSIGN_OR_RETURN(MeasuredCosts measured, MeasureTokenCosts(seen, input.profiles, input.transfer.probe, options));
  for (auto* sides : {&measured.costs.keys, &measured.costs.values}) {
    for (std::vector<double>& width : *sides) width.resize(input.kv.tokens);
  }
  return std::move(measured.costs);
}

// The closed form's costs, each token's scaled so that at the narrowest level it is what the controller says.
Status LearnCosts(const PlanInput& input, const Controller& controller, MeasuredCosts* measured) {
  const size_t earlier = input.earlier != nullptr ? input.earlier->tokens : 0;
  const AttentionStats own = measured->attention.From(earlier);
  const ControllerFacts facts{own, measured->costs, earlier + input.kv.tokens, input.token_ids, input.predictions};
  QKV_ASSIGN_OR_RETURN(const auto columns, ControllerColumns(facts, controller.weights().inputs));
  std::vector<double> multiplier = controller.Predict(columns);
  for (size_t t = 0; t < multiplier.size(); ++t) {
    const double closed = measured->costs.keys[0][t] + measured->costs.values[0][t];
    multiplier[t] = closed > 0 ? multiplier[t] / closed : 0.0;  // what costs nothing at any width
  }
  ScaleTokenCosts(multiplier, &measured->costs);
  return {};
}

Result<PlanCosts> MeasureScoredCosts(const PlanInput& input, const PlanRequest& request) {
  if (input.token_ids.size() != input.kv.tokens) {
    return Status(StatusCode::kInvalidArgument, "plan: not one token id a row of the cache");
  }
  const FeatureSet& features = request.features;
  CostOptions options;
  // A controller's inputs are of measured attention, whichever they are.
  options.attention = features.Has(Feature::kAttention) || request.measured() == Policy::kLearned;
  options.spread = features.Has(Feature::kVariance) || features.Has(Feature::kEntropy);
  options.layers = request.limits.layers;
  options.metrics = input.metrics;
  options.earlier = input.earlier;
  options.threads = request.threads;
  QKV_ASSIGN_OR_RETURN(MeasuredCosts measured, MeasureTokenCosts(input.kv, input.profiles, input.window, options));
  if (request.measured() == Policy::kLearned) {
    QKV_RETURN_IF_ERROR(LearnCosts(input, *request.controller, &measured));
    return PlanCosts{std::move(measured.costs), features.Names(), MakeAnchors(measured.attention)};
  }
  const bool topology = request.measured() == Policy::kTopology;
  const AttentionStats own = measured.attention.From(input.earlier != nullptr ? input.earlier->tokens : 0);
  const ScoreInput score_input{own, input.token_ids, input.predictions, input.transfer};
  QKV_ASSIGN_OR_RETURN(const Score score,
                       MakeScore(score_input, features, topology, request.alpha, request.limits.fixed));
  if (score.used.Has(Feature::kProbe)) {
    options.attention = true;
    QKV_ASSIGN_OR_RETURN(const TokenCosts probe, ProbeCosts(input, options));
    measured.costs = MixTokenCosts(measured.costs, probe, request.alpha);
  }
  ScaleTokenCosts(score.multiplier, &measured.costs);
  return PlanCosts{std::move(measured.costs), score.used.Names(), MakeAnchors(measured.attention)};
}

}  // namespace

const char* PolicyName(Policy policy) { return kNames[static_cast<size_t>(policy)]; }

Result<Policy> PolicyFromName(const std::string& name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<Policy>(found - kNames.begin());
  return Status(StatusCode::kInvalidArgument,
                "unknown policy '" + name + "'; choose uniform, local, topology, learned, random or inverted");
}

std::string PlanRequest::Description() const {
  std::string text = PolicyName(policy);
  if (policy != measured()) text += std::string(" of ") + PolicyName(control_of);
  if (measured() == Policy::kTopology) text += fmt::format(", alpha {}", alpha);
  if (measured() == Policy::kLearned && controller != nullptr) text += " by " + controller->name();
  if (policy == Policy::kRandom) text += fmt::format(", seed {}", seed);
  return text;
}

Status CheckPlanRequest(const PlanRequest& request) {
  const auto invalid = [](const std::string& what) { return Status(StatusCode::kInvalidArgument, what); };
  const bool is_share = request.alpha >= 0 && request.alpha <= 1;  // no NaN
  if (!is_share) return invalid(fmt::format("alpha is {}: 0 to 1", request.alpha));
  const Policy of = request.control_of;
  if (of != Policy::kLocal && of != Policy::kTopology && of != Policy::kLearned) {
    return invalid(fmt::format("there is no control of {}; choose local, topology or learned", PolicyName(of)));
  }
  if (request.policy == Policy::kUniform && request.features != DefaultFeatures()) {
    return invalid("policy uniform looks at no features; leave them out or choose another policy");
  }
  if (request.measured() != Policy::kLearned) return {};
  if (request.controller == nullptr) return invalid("policy learned goes by a controller: give one");
  if (request.features.on != request.controller->features().on) {
    return invalid("policy learned looks at the features that its controller was trained on; give no others");
  }
  const std::vector<LayerAdjustment>& layers = request.limits.layers;
  const std::vector<ControllerInput>& inputs = request.controller->weights().inputs;
  if (std::any_of(layers.begin(), layers.end(), [](LayerAdjustment a) { return a != LayerAdjustment(); }) &&
      std::find(inputs.begin(), inputs.end(), ControllerInput::kCost) != inputs.end()) {
    return invalid(fmt::format(
        "controller {} looks at the cost at 2 bits, which it does not know of layers with widths of their own; leave "
        "these out, or choose another",
        request.controller->name()));
  }
  return {};
}

Result<PlanCosts> MeasurePlanCosts(const PlanInput& input, const PlanRequest& request) {
  QKV_RETURN_IF_ERROR(CheckPlanRequest(request));
  return request.policy == Policy::kUniform ? UniformCosts(input, request) : MeasureScoredCosts(input, request);
}

Result<BitPlan> MakePlan(const PlanCosts& measured, std::span<const LayerShape> shapes, const PlanRequest& request) {
  QKV_ASSIGN_OR_RETURN(BitPlan plan, Allocate(measured.costs, shapes, request.limits, request.Description()));
  if (request.policy != request.measured()) Rearrange(measured.costs, request, &plan);
  return plan;
}

}  // namespace qkvshare
