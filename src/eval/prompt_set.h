// Sets of prompts that fidelity is measured on, made for one model's tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "eval/eval_prompt.h"
#include "qkvshare/status.h"
#include "runtime/model.h"

namespace qkvshare {

enum class PromptSet {
  kGsm8k,      // solved problems; the continuation is another question and its own answer
  kFacts,      // text with facts, in sections; questions for one of them, answers known
  kReceivers,  // the same text; receivers with instructions of their own, questions, or parts of it
};

struct PromptSetRequest {
  PromptSet set = PromptSet::kFacts;
  std::string file;                // kGsm8k: of problems
  uint32_t context_tokens = 1024;  // of each context, at most; at least 64
  size_t prompts = 20;
  uint64_t seed = 1;
  // By the model's chat template: the context is the user's first message and the turns are next ones. Without, plain
  // text. kGsm8k is always plain text, as few-shot prompts are.
  bool chat = false;
};

// "gsm8k:FILE", "facts" or "receivers", into set and file. kInvalidArgument says what there is.
Status ParsePromptSet(const std::string& text, PromptSetRequest* request);
// Whether the model has a chat template that turns can follow each other by.
bool HasChat(const Model& model);

// The prompts, the same for the same request, tokenizer and template. Each has its own text; a continuation's answer
// may be empty: the FP16 hand-over's greedy one.
//
// kGsm8k: whole problems, "Question: ...\nAnswer: ...\n\n", as many as fit into the context; one continuation of kind
// "continue", whose problem is not in it. One segment.
// kFacts: a document whose sections fill the context to the token (runs of filler make up what is left), a segment
// each, whose role is its title; some 10 continuations of kind "question" with short answers.
// kReceivers: the same documents; some 10 continuations of kinds "question", "instruction" and "part" (roles: the
// section that it is about), each with an instruction of 20 to 60 tokens before its turn.
//
// kInvalidArgument: fewer problems in the file than needed, a context too small; kUnsupported as NextUserTurn; as
// ReadGsmProblems.
Result<std::vector<EvalPrompt>> MakePromptSet(const Model& model, const PromptSetRequest& request);

}  // namespace qkvshare
