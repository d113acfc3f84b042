#include "quant/bit_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace qkvshare {

int SideBits(Level level, Side side, LayerAdjustment adjustment) {
  const int bits = side == Side::kKeys ? level.key_bits : level.value_bits;
  if (level == kExactLevel) return bits;
  const int8_t steps = side == Side::kKeys ? adjustment.keys : adjustment.values;
  const auto width = std::find(kWidths.begin(), kWidths.end(), bits) - kWidths.begin();
  return kWidths[static_cast<size_t>(std::clamp<std::ptrdiff_t>(width + steps, 0, kWidths.size() - 1))];
}

std::vector<int> BitPlan::SideBitsOf(size_t layer, Side side) const {
  std::vector<int> bits;
  bits.reserve(levels.size());
  for (const Level level : levels) bits.push_back(SideBits(level, side, adjustment(layer)));
  return bits;
}

bool IsValidLevel(Level level) {
  const auto valid = [](int bits) { return std::find(kWidths.begin(), kWidths.end(), bits) != kWidths.end(); };
  return valid(level.key_bits) && valid(level.value_bits);
}

std::string LevelName(Level level) {
  return level == kExactLevel ? "exact" : fmt::format("K{}V{}", level.key_bits, level.value_bits);
}

Status ValidatePlan(const BitPlan& plan, size_t tokens, size_t layers) {
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
  if (!plan.layers.empty() && plan.layers.size() != layers) {
    return invalid(fmt::format("adjusts {} layers, but there are {}", plan.layers.size(), layers));
  }
  for (const LayerAdjustment adjustment : plan.layers) {
    if (std::max(std::abs(adjustment.keys), std::abs(adjustment.values)) > kMaxAdjustment) {
      return invalid(fmt::format("a layer is adjusted by more than {} steps", kMaxAdjustment));
    }
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
