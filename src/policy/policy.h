// Policies: from what is known of a context to its bit plan. docs/policies.md explains them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "policy/allocator.h"
#include "policy/attention_window.h"
#include "policy/earlier_rows.h"
#include "policy/features.h"
#include "policy/token_costs.h"
#include "policy/transferability.h"
#include "qkvshare/status.h"
#include "quant/anchor.h"
#include "quant/bit_plan.h"
#include "quant/channel_profile.h"
#include "quant/kv_view.h"

namespace qkvshare {

class Controller;  // policy/controller.h

enum class Policy {
  kUniform,   // every token alike; a budget between two levels is spread evenly
  kLocal,     // by measured error times I(t): what the sender's own last window looks at
  kTopology,  // by measured error times S(t) = alpha * I(t) + (1 - alpha) * T(t): and what is known of the receivers
  kLearned,   // by what a controller predicts from the token's features, times the measured errors of the widths
  // Controls, each of one of the three: the same levels, so the same bytes, on other tokens.
  kRandom,    // shuffled
  kInverted,  // the least important token gets the most
};

// "uniform", "local", "topology", "learned", "random", "inverted".
const char* PolicyName(Policy policy);
Result<Policy> PolicyFromName(const std::string& name);

// A control: the same levels as another policy's, on other tokens.
constexpr bool IsControl(Policy policy) { return policy == Policy::kRandom || policy == Policy::kInverted; }
// The policy whose plan counts: itself, or what it is the control of.
constexpr Policy MeasuredPolicy(Policy policy, Policy control_of) { return IsControl(policy) ? control_of : policy; }

inline constexpr double kDefaultAlpha = 0.5;  // as much for the receivers as for the sender

struct PlanRequest {
  Policy policy = Policy::kUniform;
  Policy control_of = Policy::kLocal;  // or kTopology, kLearned: of which kRandom and kInverted are the control
  uint64_t seed = 1;                   // of kRandom
  double alpha = kDefaultAlpha;        // of topology, 0 to 1
  FeatureSet features = DefaultFeatures();
  std::shared_ptr<const Controller> controller;  // of kLearned; then `features` are its own
  AllocationLimits limits;
  int threads = 1;

  Policy measured() const { return MeasuredPolicy(policy, control_of); }
  // "topology, alpha 0.5", "learned by gsm8k", "random of local, seed 1".
  std::string Description() const;
};

// kInvalidArgument: alpha out of range, a control of a control, features for uniform, learned without a controller or
// with other features than it was trained on.
Status CheckPlanRequest(const PlanRequest& request);

// What is known of the tokens to pack. Everything is referenced.
struct PlanInput {
  const KvView& kv;
  const KeyProfiles& profiles;
  const AttentionWindow& window;  // empty only for uniform
  std::span<const int32_t> token_ids{};
  std::span<const TokenPrediction> predictions{};  // for confidence and next_entropy
  const Transferability& transfer;
  const KeyMetrics* metrics = nullptr;   // in which keys will be rounded
  const EarlierRows* earlier = nullptr;  // that the queries see too, before those of kv
};

struct PlanCosts {
  TokenCosts costs;
  std::vector<std::string> features;  // what they go by
  std::vector<Anchor> anchors;        // of the window, over the whole context; none without; uniform: of some layers
};

// Needs no budget. kInvalidArgument as CheckPlanRequest, for an empty window (but uniform) and for a feature that
// cannot be had; errors of EarlierRows::fill.
Result<PlanCosts> MeasurePlanCosts(const PlanInput& input, const PlanRequest& request);

// Errors of the allocator as they are.
Result<BitPlan> MakePlan(const PlanCosts& measured, std::span<const LayerShape> shapes, const PlanRequest& request);

}  // namespace qkvshare
