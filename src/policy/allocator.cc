#include "policy/allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <queue>
#include <utility>

#include "quant/row_scale.h"

namespace qkvshare {
namespace {

size_t WidthIndex(int bits) {
  return static_cast<size_t>(std::find(kWidths.begin(), kWidths.end(), bits) - kWidths.begin());
}

// A step of one token from its present level to a wider one.
struct Step {
  double gain_per_byte;
  uint32_t rank;  // order among equal gains
  uint32_t token;
  uint8_t to;

  bool operator<(const Step& other) const {
    return gain_per_byte != other.gain_per_byte ? gain_per_byte < other.gain_per_byte : rank > other.rank;
  }
};

// Rank of each token in bit-reversed order: any number of first ranks is spread evenly.
std::vector<uint32_t> SpreadRanks(size_t tokens) {
  const int bits = std::bit_width(tokens);
  std::vector<uint32_t> ranks(tokens);
  uint32_t rank = 0;
  for (size_t i = 0; i < (size_t{1} << bits); ++i) {
    size_t reversed = 0;
    for (int b = 0; b < bits; ++b) reversed |= ((i >> b) & 1) << (bits - 1 - b);
    if (reversed < tokens) ranks[reversed] = rank++;
  }
  return ranks;
}

// The levels of one allocation: those to choose from, then the exact one of the fixed tokens.
class Ladder {
 public:
  Ladder(const TokenCosts& costs, std::span<const LayerShape> shapes, const AllocationLimits& limits)
      : costs_(costs), levels_(limits.levels) {
    if (levels_.empty()) levels_.assign(kLevels.begin(), kLevels.end());
    choices_ = levels_.size();
    if (levels_.back() != kExactLevel) levels_.push_back(kExactLevel);
    for (const Level level : levels_) {
      widths_.emplace_back(WidthIndex(level.key_bits), WidthIndex(level.value_bits));
      bytes_.push_back(TokenBytes(shapes, level, limits.layers));
    }
  }

  size_t exact() const { return levels_.size() - 1; }
  size_t bytes(size_t level) const { return bytes_[level]; }

  // The next corner of the hull after `level`: the level with the best gain a byte among those that fit in `room`.
  // False where there is none. A wider level of as many bytes (2-bit rows are padded, and an adjusted level may be
  // clamped to its neighbour) comes before all others; one that would add to the error is passed over.
  bool NextStep(uint32_t token, size_t level, size_t room, Step* step) const {
    bool found = false;
    for (size_t to = level + 1; to < choices_; ++to) {
      const size_t bytes = bytes_[to] - bytes_[level];
      const double gain = Cost(token, level) - Cost(token, to);
      if (bytes > room || gain < 0 || (bytes == 0 && gain == 0)) continue;
      const double gain_per_byte =
          bytes == 0 ? std::numeric_limits<double>::infinity() : gain / static_cast<double>(bytes);
      if (found && gain_per_byte <= step->gain_per_byte) continue;
      found = true;
      step->gain_per_byte = gain_per_byte;
      step->to = static_cast<uint8_t>(to);
    }
    step->token = token;
    return found;
  }

  // Drops the levels that no token has.
  BitPlan PlanOf(const std::vector<uint8_t>& level_of_token) const {
    BitPlan plan;
    std::vector<uint8_t> index(levels_.size());
    for (size_t level = 0; level < levels_.size(); ++level) {
      if (std::find(level_of_token.begin(), level_of_token.end(), level) == level_of_token.end()) continue;
      index[level] = static_cast<uint8_t>(plan.levels.size());
      plan.levels.push_back(levels_[level]);
    }
    for (const uint8_t level : level_of_token) plan.level_of_token.push_back(index[level]);
    return plan;
  }

 private:
  double Cost(size_t token, size_t level) const {
    return costs_.keys[widths_[level].first][token] + costs_.values[widths_[level].second][token];
  }

  const TokenCosts& costs_;
  std::vector<Level> levels_;
  size_t choices_ = 0;
  std::vector<std::pair<size_t, size_t>> widths_;  // of keys and values, indices into kWidths
  std::vector<size_t> bytes_;
};

// Of one token, where no side is exact.
size_t ScaleBytes(std::span<const LayerShape> shapes) {
  return TokenBytes(shapes, {4, 4}) - TokenBytes(shapes, kExactLevel) / 4;
}

Status CheckLevels(const std::vector<Level>& levels) {
  auto next = kLevels.begin();
  for (const Level level : levels) {
    const auto found = std::find(next, kLevels.end(), level);
    if (found == kLevels.end()) {
      return {StatusCode::kInvalidArgument, "levels: " + LevelName(level) + " is unknown or out of order"};
    }
    next = found + 1;
  }
  return {};
}

}  // namespace

size_t TokenBytes(std::span<const LayerShape> shapes, Level level, std::span<const LayerAdjustment> layers) {
  size_t bytes = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const int bits = SideBits(level, side, layers.empty() ? LayerAdjustment() : layers[i]);
      bytes += shapes[i].kv_heads * (RowBytes(shapes[i].dim(side), bits) + (bits < 16 ? sizeof(RowScale) : 0));
    }
  }
  return bytes;
}

size_t PlanBytes(const BitPlan& plan, std::span<const LayerShape> shapes) {
  std::vector<size_t> level_bytes;
  for (const Level level : plan.levels) level_bytes.push_back(TokenBytes(shapes, level, plan.layers));
  size_t bytes = 0;
  for (const uint8_t level : plan.level_of_token) bytes += level_bytes[level];
  return bytes;
}

size_t BudgetForBits(double code_bits, size_t tokens, FixedTokens fixed, std::span<const LayerShape> shapes) {
  const size_t exact = fixed.count(tokens);
  const size_t exact_bytes = TokenBytes(shapes, kExactLevel);
  if (code_bits >= 16) return tokens * exact_bytes;
  const size_t scale_bytes = ScaleBytes(shapes);
  // Padding of the narrowest codes counts as codes.
  const double token_bytes =
      std::max(static_cast<double>(exact_bytes) * code_bits / 16 + static_cast<double>(scale_bytes),
               static_cast<double>(TokenBytes(shapes, kLevels.front())));
  return exact * exact_bytes + static_cast<size_t>(std::floor(token_bytes * static_cast<double>(tokens - exact)));
}

double BitsForBudget(size_t budget_bytes, size_t tokens, FixedTokens fixed, std::span<const LayerShape> shapes) {
  const size_t exact = fixed.count(tokens);
  const auto exact_bytes = static_cast<double>(TokenBytes(shapes, kExactLevel));
  const double token_bytes = (static_cast<double>(budget_bytes) - static_cast<double>(exact) * exact_bytes) /
                             static_cast<double>(tokens - exact);
  return (token_bytes - static_cast<double>(ScaleBytes(shapes))) * 16 / exact_bytes;
}

ChoiceRange BudgetsWithChoice(size_t tokens, std::span<const LayerShape> shapes, const AllocationLimits& limits) {
  const std::vector<Level> all(kLevels.begin(), kLevels.end());
  const std::vector<Level>& levels = limits.levels.empty() ? all : limits.levels;
  const size_t narrowest = TokenBytes(shapes, levels.front(), limits.layers);
  const size_t widest = TokenBytes(shapes, levels.back(), limits.layers);
  size_t step = widest - narrowest;
  for (const Level level : levels) {
    const size_t more = TokenBytes(shapes, level, limits.layers) - narrowest;
    if (more > 0) step = std::min(step, more);
  }
  const size_t exact = limits.fixed.count(tokens);
  const size_t exact_bytes = exact * TokenBytes(shapes, kExactLevel);
  return {exact_bytes + (tokens - exact) * narrowest + step, exact_bytes + (tokens - exact) * widest};
}

Result<BitPlan> Allocate(const TokenCosts& costs, std::span<const LayerShape> shapes, const AllocationLimits& limits,
                         const std::string& policy) {
  QKV_RETURN_IF_ERROR(CheckLevels(limits.levels));
  const Ladder ladder(costs, shapes, limits);
  const size_t tokens = costs.tokens();
  const size_t exact = limits.fixed.count(tokens);
  const size_t needed = exact * ladder.bytes(ladder.exact()) + (tokens - exact) * ladder.bytes(0);
  if (needed > limits.budget_bytes) {
    return Status(StatusCode::kOutOfRange,
                  fmt::format("the byte budget is too small: {} tokens need at least {} bytes of codes and "
                              "scales, but {} are available",
                              tokens, needed, limits.budget_bytes));
  }
  size_t room = limits.budget_bytes - needed;
  std::vector<uint8_t> level_of_token(tokens, 0);
  const std::vector<uint32_t> ranks = SpreadRanks(tokens);
  std::priority_queue<Step> steps;
  const auto offer = [&](uint32_t token) {
    Step step{};
    step.rank = ranks[token];
    if (ladder.NextStep(token, level_of_token[token], room, &step)) steps.push(step);
  };
  for (uint32_t token = 0; token < tokens; ++token) {
    if (limits.fixed.contains(token, tokens)) {
      level_of_token[token] = static_cast<uint8_t>(ladder.exact());
    } else {
      offer(token);
    }
  }
  while (!steps.empty()) {
    const Step step = steps.top();
    steps.pop();
    const size_t bytes = ladder.bytes(step.to) - ladder.bytes(level_of_token[step.token]);
    if (bytes <= room) {
      room -= bytes;
      level_of_token[step.token] = step.to;
    }
    offer(step.token);  // its next step, or a smaller one that still fits
  }
  BitPlan plan = ladder.PlanOf(level_of_token);
  plan.policy = policy;
  plan.layers = limits.layers;
  return plan;
}

}  // namespace qkvshare
