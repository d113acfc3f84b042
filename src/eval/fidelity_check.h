// What can be known of a run of `eval fidelity` before it: whether its prompts and arms go together.
#pragma once

#include <span>

#include "eval/eval_prompt.h"
#include "eval/fidelity_arm.h"
#include "qkvshare/status.h"

namespace qkvshare {

// kInvalidArgument names prompt and continuation: no tokens, nothing to score, ids twice, segments that do not cover
// the context, roles that no segment has; or where there are no prompts.
Status CheckPrompts(std::span<const EvalPrompt> prompts);

// Whether the arm knows something of this receiver before the hand-over: a segment that it is there for, its
// instruction, or what the receiver before it in the prompt (of the first: the last) attended to. An arm that needs no
// receiver knows enough. kInvalidArgument says what is missing; also of a feature that was asked for by name.
Status CheckKnows(const FidelityArm& arm, const EvalPrompt& prompt, const Continuation& continuation);

}  // namespace qkvshare
