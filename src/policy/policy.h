// Policies: from what is known of a context to its bit plan.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "quant/bit_plan.h"
#include "quant/channel_profile.h"
#include "quant/kv_view.h"

namespace qkvshare {

enum class Policy {
  kUniform,  // every token alike; a budget between two levels is spread evenly
  kLocal,    // by measured error times the attention of the sender's last window (the paper's I(t), local importance)
};

// "uniform", "local".
const char* PolicyName(Policy policy);
Result<Policy> PolicyFromName(const std::string& name);

struct PlanRequest {
  Policy policy = Policy::kUniform;
  size_t budget_bytes = 0;  // of codes and scales: BudgetForBits, or what a limit on the file leaves
  size_t exact_tokens = kSinkTokens;
  int threads = 1;
};

// window: for kLocal; kInvalidArgument where it is empty. Errors of the allocator as they are.
Result<BitPlan> MakePlan(const KvView& kv, const KeyProfiles& profiles, const AttentionWindow& window,
                         const PlanRequest& request);

}  // namespace qkvshare
