// Restore: a card's tokens into a session's cache, by dequantizing (the paper's injection path).
#pragma once

#include <cstdint>

#include "card/card.h"
#include "qkvshare/status.h"
#include "runtime/session.h"

namespace qkvshare {

struct RestoreTimes {
  int64_t dequantize_us = 0;
  int64_t inject_us = 0;  // llama_state_seq_set_data
};

// Whether the card was made by this model, before there is a session. kMismatch; kCorrupt where a token id is not in
// its vocabulary. Nothing else of a card may be used with a model before this.
Status CheckCardModel(const Card& card, const Model& model);

// Whether it was also used in this way. kMismatch names what differs: model, RoPE or shapes.
Status CheckCardFits(const Card& card, const Session& session);

// Replaces a sequence of the session by the card's first `tokens` tokens. All checks, dequantizing included, come
// before anything is changed; other sequences are not touched. Where the cache is quantized, so is what is restored.
// kMismatch, kOutOfRange (context too short: needed and available), kUnsupported (positions that do not count from 0),
// kCorrupt.
Status RestoreCard(const Card& card, size_t tokens, Session* session, RestoreTimes* times, int sequence = 0);

}  // namespace qkvshare
