// A part of a card as a card of its own: nothing is quantized again.
#pragma once

#include <cstdint>

#include "card/card.h"
#include "card/card_writer.h"
#include "qkvshare/status.h"

namespace qkvshare {

// Tokens [first, first + tokens) of a card, as one without parent. Codes, scales and exact rows are copied, so that
// each token unpacks to the same bits, and positions stay, so that it lies where it did. Segments are cut, with the
// card's content id as `parent`, unless they have one; anchors are those of these tokens; `policy` says what it is a
// part of; profile, widths of layers, hop, sender and time are the card's. The same part of a card gives the same
// bytes. kInvalidArgument (no tokens, or others than the card has), kCorrupt (rule 90).
Result<PackedCard> SliceCard(const Card& card, uint32_t first, uint32_t tokens, int threads);

}  // namespace qkvshare
