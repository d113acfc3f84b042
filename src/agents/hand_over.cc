#include "agents/hand_over.h"

#include <algorithm>

namespace qkvshare {

std::vector<HandedCard> ContextAfter(const TurnRecord& turn) {
  const bool shares_all = turn.gives.size() == 1 && turn.gives.front() == turn.card;
  if (!shares_all) return turn.gives;
  std::vector<HandedCard> context = turn.taken;
  context.push_back(turn.card);
  return context;
}

std::vector<HandedCard> JoinContexts(std::span<const TurnRecord* const> turns) {
  std::vector<HandedCard> joined;
  for (const TurnRecord* turn : turns) {
    for (const HandedCard& card : ContextAfter(*turn)) {
      const auto known =
          std::find_if(joined.begin(), joined.end(), [&](const HandedCard& other) { return other.id == card.id; });
      if (known == joined.end()) {
        joined.push_back(card);
      } else {
        known->tokens = std::max(known->tokens, card.tokens);
      }
    }
  }
  return joined;
}

}  // namespace qkvshare
