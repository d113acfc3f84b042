// What is known of a receiver when a card is packed for it, taken from its continuation in an evaluation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/card_arm.h"
#include "eval/eval_prompt.h"
#include "eval/fidelity.h"
#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "quant/anchor.h"
#include "runtime/kv_state.h"
#include "runtime/sender.h"
#include "runtime/session.h"

namespace qkvshare {

// Queries of a continuation, and all that they see: rows of the context, then of the continuation.
struct OracleQueries {
  AttentionWindow window;
  std::shared_ptr<const KvState> rows;
};

struct ReceiverFacts {
  AttentionWindow probe;         // of its instruction; empty: it has none
  OracleQueries oracle;          // of all predictions that are scored
  OracleQueries oracle_of_turn;  // of those before the answer begins
  std::vector<Anchor> anchors;   // of the receiver before it; empty: there is none
};

// The arm's options for packing the prompt's context for this continuation: of what is known, what its features ask
// for. It is a reader of the segments of its roles at distance 1 (of all, where it names none), and at distance 2 of
// the others, which it is given too. Sender and predictions are left as they are. kInvalidArgument: a role that no
// segment has.
Result<PackOptions> PackOptionsFor(const CardArm& arm, const EvalPrompt& prompt, const Continuation& continuation,
                                   const std::string& sender, const ReceiverFacts& facts);

// Queries of the tokens from `first` on but for the last, which predicts nothing that is scored: of every prediction
// that is. They see each other, so that weights are shares of all that they look at. Before these tokens comes what the
// session (sequence 0) holds; afterwards it is as before, but for its window and logits. kInvalidArgument where there
// is no such token; errors as Session::Prefill, Session::TakeKv.
Result<OracleQueries> FindOracleQueries(Session* session, std::span<const int32_t> tokens, size_t first);

// ScoreTokens with the session's queries kept, and the anchors that a card of these tokens would have, as far as they
// are of what came before: by the last `own` tokens, as PackTokens goes by a window. Afterwards the session keeps no
// queries.
struct ScoredWithAnchors {
  LogitRows rows;
  std::vector<Anchor> anchors;
};
Result<ScoredWithAnchors> ScoreWithAnchors(Session* session, std::span<const int32_t> tokens, size_t own);

}  // namespace qkvshare
