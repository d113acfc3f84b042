#include "policy/policy.h"

#include "policy/allocator.h"
#include "policy/token_costs.h"

namespace qkvshare {

const char* PolicyName(Policy policy) { return policy == Policy::kUniform ? "uniform" : "local"; }

Result<Policy> PolicyFromName(const std::string& name) {
  for (const Policy policy : {Policy::kUniform, Policy::kLocal}) {
    if (name == PolicyName(policy)) return policy;
  }
  return Status(StatusCode::kInvalidArgument, "unknown policy '" + name + "'; choose uniform or local");
}

Result<BitPlan> MakePlan(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window,
                         const PlanRequest& request) {
  TokenCosts costs = EqualTokenCosts(kv.tokens);
  if (request.policy == Policy::kLocal) {
    QKV_ASSIGN_OR_RETURN(costs, MeasureTokenCosts(kv, profiles, window, request.threads));
  }
  return Allocate(costs, ShapesOf(kv), request.budget_bytes, request.exact_tokens, PolicyName(request.policy));
}

}  // namespace qkvshare
