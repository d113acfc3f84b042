// What a card loses on its own last tokens.
#pragma once

#include <cstddef>
#include <memory>

#include "card/card.h"
#include "eval/fidelity.h"
#include "qkvshare/status.h"
#include "runtime/session.h"

namespace qkvshare {

// Decodes the card's last `last` tokens (at most half of them) after those before, once over the session's own rows and
// once over the card's, restored, and compares next-token distributions. session: holds the card's tokens and no cards;
// afterwards it is empty. kInvalidArgument where it does not, or the card has one token; errors of InjectCards and of
// decoding.
Result<Fidelity> MeasureCardLoss(Session* session, const std::shared_ptr<const Card>& card, size_t last);

}  // namespace qkvshare
