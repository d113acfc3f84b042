// What a fidelity evaluation is run on: contexts of senders, and what receivers do after them. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "card/card_info.h"

namespace qkvshare {

// What one receiver reads and says after the context: instruction, turn, answer, one after the other.
struct Continuation {
  std::string id;    // of its prompt's continuations
  std::string kind;  // "continue", "question", "instruction", "part": what it does with the context
  // Known before the hand-over, so that a policy may probe with it. Not scored. May be empty.
  std::vector<int32_t> instruction;
  std::vector<int32_t> turn;    // the rest of what it reads; not empty
  std::vector<int32_t> answer;  // empty: the greedy one of the FP16 hand-over
  // Roles of the segments that it is there for, as a topology would name them; empty: all.
  std::vector<std::string> roles;
};

struct EvalPrompt {
  std::string id;
  std::vector<int32_t> context;   // the sender's tokens
  std::vector<Segment> segments;  // of the context; empty: one of role "prompt"
  std::vector<Continuation> continuations;
};

}  // namespace qkvshare
