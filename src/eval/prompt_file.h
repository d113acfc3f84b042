// Prompts of one's own for `eval fidelity`, as a file of JSON lines.
#pragma once

#include <string>
#include <vector>

#include "eval/eval_prompt.h"
#include "qkvshare/status.h"
#include "runtime/model.h"

namespace qkvshare {

// A prompt a line, all of it text that is tokenized as it stands, piece by piece:
//
//   {"id": "a",                                       may be left out: "prompt 1", ...
//    "context": "...",                                or sections: [{"role": "rules", "text": "..."}, ...]
//    "turns": [{"turn": "...", "instruction": "...",  each what one receiver reads; a text stands for {"turn": text}
//               "answer": "...",                      without: the greedy one of the FP16 hand-over
//               "id": "1", "kind": "question", "roles": ["rules"]}]}
//
// kNotFound, kIo; kOutOfRange past 64 MiB; kInvalidArgument names the line and what is wrong with it.
Result<std::vector<EvalPrompt>> ReadPromptFile(const Model& model, const std::string& path);

}  // namespace qkvshare
