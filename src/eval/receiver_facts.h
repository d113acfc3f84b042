// What is known of a receiver when a card is packed for it, taken from its continuation in an evaluation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eval/card_arm.h"
#include "eval/eval_prompt.h"
#include "eval/fidelity.h"
#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "quant/anchor.h"
#include "runtime/sender.h"
#include "runtime/session.h"

namespace qkvshare {

struct ReceiverFacts {
  AttentionWindow probe;        // of its instruction; empty: it has none
  AttentionWindow oracle;       // of all that it reads and says
  std::vector<Anchor> anchors;  // of the receiver before it; empty: there is none
};

// The arm's options for packing the prompt's context for this continuation: of what is known, what its features ask
// for. It is a reader of the segments of its roles at distance 1 (of all, where it names none), and at distance 2 of
// the others, which it is given too. Sender and predictions are left as they are. kInvalidArgument: a role that no
// segment has.
Result<PackOptions> PackOptionsFor(const CardArm& arm, const EvalPrompt& prompt, const Continuation& continuation,
                                   const std::string& sender, const ReceiverFacts& facts);

// All queries of these tokens over what the session (sequence 0) holds; afterwards it is as before, but for its window
// and logits. Errors as Session::Prefill.
Result<AttentionWindow> OracleWindow(Session* session, std::span<const int32_t> tokens);

// ScoreTokens with the session's queries kept, and the anchors that a card of these tokens would have, as far as they
// are of what came before: of the last `own` tokens (at most kWindowTokens of them), every eighth, or more where there
// are few. Afterwards the session keeps no queries.
struct ScoredWithAnchors {
  LogitRows rows;
  std::vector<Anchor> anchors;
};
Result<ScoredWithAnchors> ScoreWithAnchors(Session* session, std::span<const int32_t> tokens, size_t own);

}  // namespace qkvshare
