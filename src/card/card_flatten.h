// One card of a chain of cards: nothing is quantized again.
#pragma once

#include <memory>
#include <span>

#include "card/card.h"
#include "card/card_writer.h"
#include "qkvshare/status.h"

namespace qkvshare {

// The cards in order, the first without a parent, each other continuing the one before; tokens of a parent past its
// child's first one are left out. Codes, scales and exact rows are copied, so that each token unpacks to the same bits
// as before. The bit maps, tokens, positions and segments lie one after the other (a segment gets the content id of its
// card as `parent`, unless it has one); anchors are united (of one token the larger weight; the heaviest, where there
// are more than the format takes), and so are the features; hop, sender, time and protected tokens are the last card's.
// The same cards give the same bytes.
//
// Profile and widths of layers must be those of all cards, but for cards all of whose tokens are exact.
// kInvalidArgument (no card, or the first has a parent), kMismatch (CheckLink), kUnsupported (profiles or layers
// differ, or a card that was made on cards side by side: keys would have to be turned), kOutOfRange (more than a card
// holds), kCorrupt (rule 90).
Result<PackedCard> FlattenCards(std::span<const std::shared_ptr<const Card>> cards, int threads);

}  // namespace qkvshare
