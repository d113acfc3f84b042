// Cards made of other cards' rows, which are copied: codes, scales and exact values stay what they are, to the bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "card/card.h"
#include "card/card_writer.h"
#include "qkvshare/status.h"

namespace qkvshare {

// Tokens [first, end) of a card.
struct CardRange {
  const Card* card = nullptr;
  uint32_t first = 0;
  uint32_t end = 0;

  uint32_t tokens() const { return end - first; }
  std::span<const uint8_t> levels() const { return std::span(card->plan().level_of_token).subspan(first, tokens()); }
  // Whether any of them is quantized, so that profile and widths of layers count.
  bool has_codes() const;
};

// Adds the range's tokens, positions and segments. A segment gets the content id of its card as `parent`, unless it has
// one.
void AddRange(const CardRange& range, CardContent* content);

// A card of the ranges' rows, one after the other. content: all but rows and plan. of_codes: the card whose profile and
// widths of layers those of all ranges with codes are. kOutOfRange (more than a card holds), kCorrupt (rule 90).
Result<PackedCard> CopyRanges(std::span<const CardRange> ranges, const Card& of_codes, const std::string& policy,
                              const CardContent& content, int threads);

}  // namespace qkvshare
