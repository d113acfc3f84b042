// Restore: a card's tokens into a session's cache, by dequantizing (the paper's injection path).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "card/card.h"
#include "qkvshare/status.h"
#include "quant/half.h"
#include "runtime/card_context.h"
#include "runtime/card_list.h"
#include "runtime/rope.h"
#include "runtime/session.h"

namespace qkvshare {

// Turns keys that were cached at positions p to p + delta. rows: [count, dim], of a head each.
void MoveKeys(const LayerRope& rope, int32_t delta, size_t dim, size_t count, Half* rows);

struct RestoreTimes {
  int64_t dequantize_us = 0;
  int64_t inject_us = 0;  // llama_state_seq_set_data
};

// Whether the card was made by this model, before there is a session. kMismatch; kCorrupt where a token id is not in
// its vocabulary. Nothing else of a card may be used with a model before this.
Status CheckCardModel(const Card& card, const Model& model);

// Whether it was also used in this way. kMismatch names what differs: model, RoPE or shapes.
Status CheckCardFits(const Card& card, const CardContext& context);

// Whether these cards can be restored in the context, but for room. kMismatch, kInvalidArgument (CheckCardOrder),
// kUnsupported (a card that cannot be moved to its place).
Status CheckRestore(std::span<const CardPart> parts, const CardContext& context);
// The state of a sequence that holds these cards, dequantized, for CardContext::SetState. After CheckRestore; kCorrupt.
Result<std::vector<uint8_t>> BuildCardState(std::span<const CardPart> parts, const CardContext& context);

// Replaces a sequence of the session by these cards' tokens. All checks, dequantizing included, come
// before anything is changed; other sequences are not touched. Where the cache is quantized, so is what is restored.
// kMismatch, kInvalidArgument (CheckCardList), kOutOfRange (context too short: needed and available), kUnsupported (a
// card that cannot be moved to its place), kCorrupt.
Status RestoreCards(std::span<const CardPart> parts, Session* session, RestoreTimes* times, int sequence = 0);

// The same for the first `tokens` tokens of one card, which outlives the call.
Status RestoreCard(const Card& card, size_t tokens, Session* session, RestoreTimes* times, int sequence = 0);

}  // namespace qkvshare
