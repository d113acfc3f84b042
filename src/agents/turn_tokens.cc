#include "agents/turn_tokens.h"

#include <cstddef>

namespace qkvshare {

TurnTokens ReadTurnTokens(const Card& card, const std::function<std::string(int32_t token)>& text_of) {
  TurnTokens tokens;
  for (size_t i = 0; i < card.tokens(); ++i) {
    tokens.texts.push_back(text_of(card.token_ids()[i]));
    tokens.levels.push_back(card.plan().level(i));
  }
  for (const Segment& segment : card.info().segments) tokens.segments.push_back({segment.role, segment.tokens});
  tokens.anchors.assign(card.anchors().begin(), card.anchors().end());
  return tokens;
}

}  // namespace qkvshare
