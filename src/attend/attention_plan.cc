// How a decode call's attention is cut into items.
#include <algorithm>

#include "attend/attention.h"

namespace qkvshare {
namespace {

constexpr uint32_t kMaxRows = 64;        // that share a tile
constexpr uint32_t kRangeTokens = 2048;  // of an item
constexpr uint32_t kEnoughGroups = 32;   // with so many, ranges are not needed to keep threads busy

}  // namespace

AttentionPlan::AttentionPlan(const AttentionShape& shape, std::vector<AttentionSource> sources)
    : shape_(shape), sources_(std::move(sources)) {
  const auto group_tokens = static_cast<uint32_t>(MaxRows(shape)) / shape.group();
  const uint32_t token_groups = (shape.tokens + group_tokens - 1) / group_tokens;
  const uint32_t range_tokens = token_groups * shape.kv_heads >= kEnoughGroups ? UINT32_MAX : kRangeTokens;
  for (uint32_t first = 0; first < shape.tokens; first += group_tokens) {
    const uint32_t end = std::min(first + group_tokens, shape.tokens);
    const auto first_unit = static_cast<uint32_t>(units_.size());
    for (uint32_t source = 0; source < sources_.size(); ++source) {
      const std::vector<uint32_t>& tokens = sources_[source].tokens;
      const auto from = std::lower_bound(tokens.begin(), tokens.end(), first);
      const auto to = std::lower_bound(from, tokens.end(), end);
      if (from == to) continue;
      Unit& unit = units_.emplace_back();
      unit.source = source;
      unit.first = static_cast<uint32_t>(from - tokens.begin());
      unit.tokens = static_cast<uint32_t>(to - from);
      unit.row = query_rows_;
      query_rows_ += static_cast<size_t>(unit.tokens) * shape.group();
      if (sources_[source].card == nullptr) unit.cells = own_units_++;
    }
    for (uint32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      const auto first_item = static_cast<uint32_t>(items_.size());
      for (uint32_t unit = first_unit; unit < units_.size(); ++unit) {
        Item item;
        item.unit = unit;
        item.kv_head = kv_head;
        item.group = static_cast<uint32_t>(groups_.size());
        AddItems(item, range_tokens);
      }
      groups_.push_back({first, end - first, kv_head, first_item, static_cast<uint32_t>(items_.size()) - first_item});
    }
  }
}

size_t AttentionPlan::MaxRows(const AttentionShape& shape) {
  return static_cast<size_t>(std::max(1u, kMaxRows / shape.group())) * shape.group();
}

void AttentionPlan::AddItems(Item item, uint32_t range_tokens) {
  const auto add = [&](uint32_t begin, uint32_t end) {
    item.begin = begin;
    item.end = end;
    item.partial = partial_rows_;
    items_.push_back(item);
    partial_rows_ += static_cast<size_t>(units_[item.unit].tokens) * shape_.group();
  };
  const AttentionCard* card = sources_[units_[item.unit].source].card;
  if (card == nullptr) {
    for (uint32_t cell = 0; cell < shape_.cells;) {
      const uint32_t end = shape_.cells - cell <= range_tokens ? shape_.cells : cell + range_tokens;
      add(cell, end);
      cell = end;
    }
    return;
  }
  auto left = static_cast<uint32_t>(card->tokens());
  uint32_t begin = 0;
  uint32_t tokens = 0;
  for (uint32_t block = 0; block < card->blocks.size(); ++block) {
    tokens += card->blocks[block].tokens;
    left -= card->blocks[block].tokens;
    // No range of a few tokens is left for the end.
    const bool last = block + 1 == card->blocks.size();
    if (!last && (tokens < range_tokens || left < range_tokens / 4)) continue;
    add(begin, block + 1);
    begin = block + 1;
    tokens = 0;
  }
}

}  // namespace qkvshare
