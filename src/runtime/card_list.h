// An ordered list of cards that together make the start of a context.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "card/card.h"
#include "qkvshare/status.h"

namespace qkvshare {

// The first `tokens` tokens of a card, from position `offset` on.
struct CardPart {
  std::shared_ptr<const Card> card;
  uint32_t offset = 0;
  uint32_t tokens = 0;

  uint32_t end() const { return offset + tokens; }
  // What its positions are moved by; after CheckCardOrder.
  int32_t shift() const { return static_cast<int32_t>(offset) - card->position_offset(); }
};

// Adds a card where the last one ends, or at 0; what was packed elsewhere is moved. A delta card needs all that it was
// made on in the list, just as it was: its parent, or where it says what its context was, all cards of that; of each
// just as many tokens. Of a parent that is the last card, those past them are left out.
// kMismatch names a delta card that lacks a card, kUnsupported one that finds another number of tokens of it; the list
// stays as it is.
Status AppendCard(std::shared_ptr<const Card> card, std::vector<CardPart>* parts);

// All of them, one after the other; of a card that those after it had in their contexts just the first tokens that it
// had there. As AppendCard; kInvalidArgument where there is no card.
Result<std::vector<CardPart>> PlaceCards(std::span<const std::shared_ptr<const Card>> cards);

// Whether no two cards of the list overlap, and delta cards come after what they were made on. As PlaceCards.
Status CheckCardOrder(std::span<const CardPart> parts);
// The same, and whether the list starts at position 0 and has no gaps.
Status CheckCardList(std::span<const CardPart> parts);

// What a card of what follows the list is to say of its context: nothing where that is what its parent, the last card,
// was made on itself, and the parent; else all of the list. kUnsupported (gaps between the cards, more cards than can
// be named).
Result<std::vector<ContextCard>> ContextOf(std::span<const CardPart> parts);

// The tokens of the list, in order.
std::vector<int32_t> TokensOf(std::span<const CardPart> parts);

// Leaves the first `tokens` tokens of the list.
std::vector<CardPart> FirstTokens(std::vector<CardPart> parts, size_t tokens);

}  // namespace qkvshare
