// What a turn takes over from those before it.
#pragma once

#include <span>
#include <vector>

#include "agents/run_record.h"

namespace qkvshare {

// The whole context that a turn hands on: what it took over and its own card; or only the parts of its card that it
// shares, if it does not share all.
std::vector<HandedCard> ContextAfter(const TurnRecord& turn);

// The contexts of these turns, one after the other, each card once: where it is first. (A card and its first tokens are
// two.)
std::vector<HandedCard> JoinContexts(std::span<const TurnRecord* const> turns);

}  // namespace qkvshare
