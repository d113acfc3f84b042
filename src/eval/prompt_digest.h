// What tells prompts of evaluations apart.
#pragma once

#include <span>

#include "base/hash.h"
#include "eval/eval_prompt.h"

namespace qkvshare {

// Of all that arms are given: ids, tokens, segments, roles.
Digest PromptDigest(std::span<const EvalPrompt> prompts);

}  // namespace qkvshare
