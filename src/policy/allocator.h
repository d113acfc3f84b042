// The allocator: levels for every token under an exact byte budget, by marginal gain a byte.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "policy/token_costs.h"
#include "qkvshare/status.h"
#include "quant/bit_plan.h"
#include "quant/kv_view.h"

namespace qkvshare {

// Bytes of one token's codes and scales, all layers.
size_t TokenBytes(std::span<const LayerShape> shapes, Level level);

// Bytes of all codes and scales of a plan (without alignment).
size_t PlanBytes(const BitPlan& plan, std::span<const LayerShape> shapes);

// The budget that gives every token `code_bits` bits a channel on average, plus its scales, plus what the first
// `exact_tokens` need to be exact. code_bits: 4 to 16.
size_t BudgetForBits(double code_bits, size_t tokens, size_t exact_tokens, std::span<const LayerShape> shapes);

// Starts every token at the narrowest level, the first `exact_tokens` exact, and widens where the expected error falls
// most a byte, along the lower convex hull of each token's levels, until no step fits. The plan takes at most
// budget_bytes and leaves less than its cheapest further step. kOutOfRange where the narrowest plan does not fit
// (needed and available). Equal gains are served in an order that spreads them evenly over the tokens.
Result<BitPlan> Allocate(const TokenCosts& costs, std::span<const LayerShape> shapes, size_t budget_bytes,
                         size_t exact_tokens, const std::string& policy);

}  // namespace qkvshare
