// One prompt of `eval fidelity`: its context is prefilled once in FP16 and handed over by every arm, and what each
// continuation's next-token distributions lose is measured, teacher-forced.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agents/turn_tokens.h"
#include "eval/eval_prompt.h"
#include "eval/fidelity_arm.h"
#include "eval/fidelity_summary.h"
#include "qkvshare/status.h"
#include "runtime/kv_state.h"
#include "runtime/session.h"

namespace qkvshare {

// What all prompts of a run share.
struct FidelitySetup {
  Session* session = nullptr;         // with an F16 cache; used by nobody else
  std::span<const FidelityArm> arms;  // fitted to the model
  // Of each arm: a session with its cache types where it is of kCache, and what the layers of one are like where it is
  // of kRoundTrip.
  std::vector<std::unique_ptr<Session>> caches;
  std::vector<std::vector<LayerFormat>> formats;
  size_t predict = 0;     // tokens of an answer that is not given, at most
  bool with_map = false;  // of each card of the first continuation
  // Called as work goes on, with what it is at and tokens decoded since the last call. May be empty.
  std::function<void(const std::string& what, size_t tokens)> on_decoded;
};

// A line of a file of results.
struct FidelityResult {
  FidelityLine line;
  size_t tokens = 0;                  // of the context
  std::vector<std::string> features;  // that the card goes by
  std::optional<TurnTokens> map;      // which widths its tokens have
};

// A result for each continuation and arm: all arms of the first continuation, and so on. Of each prediction after the
// instruction (the first token of a turn is predicted by the last one of the instruction; without one it is not
// scored), numbers with six digits.
//
// Arms whose policy looks at the receiver get a card a continuation: its instruction as a probe
// (runtime/probe_queries), its roles as readers (none: of all segments) and anchors of the FP16 run of the continuation
// before it, over turn and answer; an oracle the queries of all predictions that are scored. Memory: state and cards of
// one context, for an oracle its rows once more with the continuation's, and logits of three times a continuation.
//
// Errors: as Prefill, PackSession, InjectCards, ProbeWindow, Generate; kCancelled.
Result<std::vector<FidelityResult>> MeasurePrompt(const FidelitySetup& setup, const EvalPrompt& prompt);

}  // namespace qkvshare
