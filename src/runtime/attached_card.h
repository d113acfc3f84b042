// A card that llama.cpp's attention may read where it lies: what is worked out once, for any number of receivers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attend/attention_card.h"
#include "card/card.h"
#include "qkvshare/status.h"

namespace qkvshare {

// Never changes, so threads and sequences may share it.
class AttachedCard {
 public:
  // Copies nothing but positions and channel profiles. kCorrupt names the layer whose rows are out of range.
  static Result<std::shared_ptr<const AttachedCard>> Make(std::shared_ptr<const Card> card);

  const Card& card() const { return *card_; }
  const AttentionCard& attention() const { return attention_; }

 private:
  AttachedCard() = default;

  std::shared_ptr<const Card> card_;
  AttentionCard attention_;
};

// A card at a place of a context: its token 0 is at position `offset`, and only its first `tokens` are there.
struct PlacedCard {
  std::shared_ptr<const AttachedCard> card;
  uint32_t offset = 0;
  uint32_t tokens = 0;

  uint32_t end() const { return offset + tokens; }
  // What its positions are moved by.
  int32_t shift() const { return static_cast<int32_t>(offset) - card->card().position_offset(); }
};

// The tokens that they hold, in order.
std::vector<int32_t> TokensOf(std::span<const PlacedCard> cards);

}  // namespace qkvshare
