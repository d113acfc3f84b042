// A card that llama.cpp's attention may read where it lies: what is worked out once, for any number of receivers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attend/attention_card.h"
#include "card/card.h"
#include "qkvshare/status.h"
#include "runtime/card_list.h"

namespace qkvshare {

// Never changes, so threads and sequences may share it.
class AttachedCard {
 public:
  // Copies nothing but positions and channel profiles. kCorrupt names the layer whose rows are out of range.
  static Result<std::shared_ptr<const AttachedCard>> Make(std::shared_ptr<const Card> card);

  const Card& card() const { return *card_; }
  const std::shared_ptr<const Card>& shared() const { return card_; }
  const AttentionCard& attention() const { return attention_; }

 private:
  AttachedCard() = default;

  std::shared_ptr<const Card> card_;
  AttentionCard attention_;
};

// The first `tokens` tokens of such a card, from position `offset` on.
struct PlacedCard {
  std::shared_ptr<const AttachedCard> card;
  uint32_t offset = 0;
  uint32_t tokens = 0;

  CardPart part() const { return {card->shared(), offset, tokens}; }
  uint32_t end() const { return offset + tokens; }
  int32_t shift() const { return part().shift(); }
};

std::vector<CardPart> PartsOf(std::span<const PlacedCard> cards);

}  // namespace qkvshare
