// The allocator: levels for every token under an exact byte budget, by marginal gain a byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "policy/token_costs.h"
#include "qkvshare/status.h"
#include "quant/bit_plan.h"
#include "quant/channel_profile.h"
#include "quant/kv_view.h"

namespace qkvshare {

// Tokens that stay exact whatever the budget says: the first ones, as far as they are attention sinks (SinksOf), and a
// protected window at the end.
struct FixedTokens {
  size_t first = kSinkTokens;
  size_t last = 0;

  bool contains(size_t token, size_t tokens) const { return token < first || token >= tokens - std::min(last, tokens); }
  size_t count(size_t tokens) const {
    const size_t others = tokens - std::min(last, tokens);
    return tokens - (others - std::min(first, others));
  }
};

// Bytes of one token's codes and scales, all layers. layers: one a layer, or empty.
size_t TokenBytes(std::span<const LayerShape> shapes, Level level, std::span<const LayerAdjustment> layers = {});

// Bytes of all codes and scales of a plan (without alignment).
size_t PlanBytes(const BitPlan& plan, std::span<const LayerShape> shapes);

// The budget that gives every token `code_bits` bits a channel on average, plus its scales, plus what the fixed tokens
// need to be exact. At a width of the codes: exactly the bytes of uniform codes of that width. code_bits: 2 to 16.
size_t BudgetForBits(double code_bits, size_t tokens, FixedTokens fixed, std::span<const LayerShape> shapes);
// The inverse: bits below which BudgetForBits gives less than this budget. At least one token is not fixed.
double BitsForBudget(size_t budget_bytes, size_t tokens, FixedTokens fixed, std::span<const LayerShape> shapes);

struct AllocationLimits {
  size_t budget_bytes = 0;  // of codes and scales
  FixedTokens fixed;
  std::vector<Level> levels{};            // to choose from: some of kLevels, in their order; empty: all of them
  std::vector<LayerAdjustment> layers{};  // goes into the plan; one a layer, or empty
};

// The budgets that leave a choice: from `least`, where one token gets more than the narrowest level, to less than
// `enough`, where all that are not fixed get the widest. Empty (least >= enough) where there is never one.
struct ChoiceRange {
  size_t least = 0;
  size_t enough = 0;
};
ChoiceRange BudgetsWithChoice(size_t tokens, std::span<const LayerShape> shapes, const AllocationLimits& limits);

// Starts every token at the narrowest level, the fixed ones exact, and widens where the expected error falls most a
// byte, along the lower convex hull of each token's levels, until no step fits. The plan takes at most the budget and
// leaves less than its cheapest further step that would not add to the error. kOutOfRange where the narrowest plan does
// not fit (needed and available); kInvalidArgument where levels are unknown or out of order. Equal gains are served in
// an order that spreads them evenly over the tokens. costs: measured with the same adjustments.
Result<BitPlan> Allocate(const TokenCosts& costs, std::span<const LayerShape> shapes, const AllocationLimits& limits,
                         const std::string& policy);

}  // namespace qkvshare
