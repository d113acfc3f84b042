#include "policy/allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <queue>

#include "quant/row_scale.h"

namespace qkvshare {
namespace {

constexpr size_t kLevelCount = kLevels.size();

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

class Allocator {
 public:
  Allocator(const TokenCosts& costs, std::span<const LayerShape> shapes) : costs_(costs) {
    for (size_t i = 0; i < kLevelCount; ++i) bytes_[i] = TokenBytes(shapes, kLevels[i]);
  }

  double Cost(size_t token, size_t level) const {
    return costs_.keys[WidthIndex(kLevels[level].key_bits)][token] +
           costs_.values[WidthIndex(kLevels[level].value_bits)][token];
  }
  size_t Bytes(size_t level) const { return bytes_[level]; }

  // The next corner of the hull after `level`: the level with the best gain a byte among those that fit in `room`.
  // False where there is none.
  bool NextStep(uint32_t token, size_t level, size_t room, Step* step) const {
    bool found = false;
    for (size_t to = level + 1; to < kLevelCount; ++to) {
      const size_t bytes = bytes_[to] - bytes_[level];
      if (bytes > room) continue;
      const double gain = (Cost(token, level) - Cost(token, to)) / static_cast<double>(bytes);
      if (found && gain <= step->gain_per_byte) continue;
      found = true;
      step->gain_per_byte = gain;
      step->to = static_cast<uint8_t>(to);
    }
    step->token = token;
    return found;
  }

 private:
  const TokenCosts& costs_;
  std::array<size_t, kLevelCount> bytes_{};
};

// Drops the levels that no token has.
BitPlan PlanOf(const std::vector<uint8_t>& level_of_token, const std::string& policy) {
  BitPlan plan;
  plan.policy = policy;
  std::array<uint8_t, kLevelCount> index{};
  for (size_t level = 0; level < kLevelCount; ++level) {
    if (std::find(level_of_token.begin(), level_of_token.end(), level) == level_of_token.end()) continue;
    index[level] = static_cast<uint8_t>(plan.levels.size());
    plan.levels.push_back(kLevels[level]);
  }
  for (const uint8_t level : level_of_token) plan.level_of_token.push_back(index[level]);
  return plan;
}

}  // namespace

size_t TokenBytes(std::span<const LayerShape> shapes, Level level) {
  size_t bytes = 0;
  for (const LayerShape& shape : shapes) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const int bits = SideBits(level, side, {});
      bytes += shape.kv_heads * (RowBytes(shape.dim(side), bits) + (bits < 16 ? sizeof(RowScale) : 0));
    }
  }
  return bytes;
}

size_t PlanBytes(const BitPlan& plan, std::span<const LayerShape> shapes) {
  std::vector<size_t> level_bytes;
  for (const Level level : plan.levels) level_bytes.push_back(TokenBytes(shapes, level));
  size_t bytes = 0;
  for (const uint8_t level : plan.level_of_token) bytes += level_bytes[level];
  return bytes;
}

size_t BudgetForBits(double code_bits, size_t tokens, size_t exact_tokens, std::span<const LayerShape> shapes) {
  const size_t exact = std::min(exact_tokens, tokens);
  const size_t exact_bytes = TokenBytes(shapes, kExactLevel);
  if (code_bits >= 16) return tokens * exact_bytes;
  const size_t scale_bytes = TokenBytes(shapes, {4, 4}) - exact_bytes / 4;
  // Padding of the narrowest codes counts as codes.
  const double token_bytes =
      std::max(static_cast<double>(exact_bytes) * code_bits / 16 + static_cast<double>(scale_bytes),
               static_cast<double>(TokenBytes(shapes, kLevels.front())));
  return exact * exact_bytes + static_cast<size_t>(std::floor(token_bytes * static_cast<double>(tokens - exact)));
}

Result<BitPlan> Allocate(const TokenCosts& costs, std::span<const LayerShape> shapes, size_t budget_bytes,
                         size_t exact_tokens, const std::string& policy) {
  const Allocator allocator(costs, shapes);
  const size_t tokens = costs.keys[0].size();
  const size_t exact = std::min(exact_tokens, tokens);
  std::vector<uint8_t> level_of_token(tokens, 0);
  std::fill_n(level_of_token.begin(), exact, static_cast<uint8_t>(kLevelCount - 1));
  const size_t needed = exact * allocator.Bytes(kLevelCount - 1) + (tokens - exact) * allocator.Bytes(0);
  if (needed > budget_bytes) {
    return Status(StatusCode::kOutOfRange,
                  fmt::format("the byte budget is too small: {} tokens need at least {} bytes of codes and "
                              "scales, but {} are available",
                              tokens, needed, budget_bytes));
  }
  size_t room = budget_bytes - needed;
  const std::vector<uint32_t> ranks = SpreadRanks(tokens);
  std::priority_queue<Step> steps;
  const auto offer = [&](uint32_t token) {
    Step step{};
    step.rank = ranks[token];
    if (allocator.NextStep(token, level_of_token[token], room, &step)) steps.push(step);
  };
  for (size_t token = exact; token < tokens; ++token) offer(static_cast<uint32_t>(token));
  while (!steps.empty()) {
    const Step step = steps.top();
    steps.pop();
    const size_t bytes = allocator.Bytes(step.to) - allocator.Bytes(level_of_token[step.token]);
    if (bytes <= room) {
      room -= bytes;
      level_of_token[step.token] = step.to;
    }
    offer(step.token);  // its next step, or a smaller one that still fits
  }
  return PlanOf(level_of_token, policy);
}

}  // namespace qkvshare
