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
      if (std::find(joined.begin(), joined.end(), card) == joined.end()) joined.push_back(card);
    }
  }
  return joined;
}

}  // namespace qkvshare
