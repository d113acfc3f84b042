#include "quant/bit_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace qkvshare {

bool IsValidLevel(Level level) { return std::find(kLevels.begin(), kLevels.end(), level) != kLevels.end(); }

std::string LevelName(Level level) { return fmt::format("K{}V{}", level.key_bits, level.value_bits); }

Status ValidatePlan(const BitPlan& plan, size_t tokens) {
  const auto invalid = [](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, "bit plan: " + what);
  };
  if (plan.tokens() != tokens) {
    return invalid(fmt::format("made for {} tokens, but there are {}", plan.tokens(), tokens));
  }
  if (plan.levels.empty() || plan.levels.size() > 16) return invalid("must have 1 to 16 levels");
  for (size_t i = 0; i < plan.levels.size(); ++i) {
    if (!IsValidLevel(plan.levels[i])) return invalid(LevelName(plan.levels[i]) + " is not a level");
    for (size_t j = 0; j < i; ++j) {
      if (plan.levels[i] == plan.levels[j]) return invalid(LevelName(plan.levels[i]) + " is listed twice");
    }
  }
  for (const uint8_t level : plan.level_of_token) {
    if (level >= plan.levels.size()) return invalid(fmt::format("level index {} is past the end", level));
  }
  return {};
}

TokenOrder OrderTokens(const BitPlan& plan) {
  TokenOrder order;
  order.level_size.assign(plan.levels.size(), 0);
  for (const uint8_t level : plan.level_of_token) ++order.level_size[level];
  std::vector<uint32_t> next(plan.levels.size(), 0);
  for (size_t i = 1; i < next.size(); ++i) next[i] = next[i - 1] + order.level_size[i - 1];
  order.token_at.resize(plan.tokens());
  for (size_t token = 0; token < plan.tokens(); ++token) {
    order.token_at[next[plan.level_of_token[token]]++] = static_cast<uint32_t>(token);
  }
  return order;
}

BitPlan UniformPlan(size_t tokens, Level level, size_t exact_tokens) {
  BitPlan plan;
  plan.policy = "uniform";
  plan.levels.push_back(level);
  plan.level_of_token.assign(tokens, 0);
  const size_t exact = std::min(exact_tokens, tokens);
  if (level != kExactLevel && exact > 0) {
    plan.levels.push_back(kExactLevel);
    std::fill_n(plan.level_of_token.begin(), exact, uint8_t{1});
  }
  return plan;
}

}  // namespace qkvshare
