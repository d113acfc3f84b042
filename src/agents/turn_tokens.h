// What a turn itself added to the context, token by token, as its card has it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "card/card.h"
#include "quant/anchor.h"
#include "quant/bit_plan.h"

namespace qkvshare {

struct TurnTokens {
  struct Segment {
    std::string role;
    uint32_t tokens = 0;
  };
  std::vector<std::string> texts;  // bytes of each token
  std::vector<Level> levels;       // and its width
  std::vector<Segment> segments;   // cover the tokens in order; empty: not known
  // What it attended to, by the token's index in its whole context: what it took over and then its own.
  std::vector<Anchor> anchors;
};

// text_of: the bytes of a token, as Model::Detokenize of it alone gives them.
TurnTokens ReadTurnTokens(const Card& card, const std::function<std::string(int32_t token)>& text_of);

}  // namespace qkvshare
