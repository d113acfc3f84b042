// Cards that a sequence attends to, as rows of its context: for measuring what it attended to.
#pragma once

#include <vector>

#include "policy/earlier_rows.h"
#include "qkvshare/status.h"
#include "runtime/card_context.h"
#include "runtime/card_list.h"

namespace qkvshare {

// Dequantized when asked for, and with keys turned to where the cards lie, as restoring has them. The context must
// outlive them. Errors of CheckRestore and CheckCardList: rows lie one after the other, so no card may be missing; fill
// gives kCorrupt.
Result<EarlierRows> RowsOfCards(std::vector<CardPart> parts, const CardContext& context);

}  // namespace qkvshare
