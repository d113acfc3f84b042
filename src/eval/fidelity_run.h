// `eval fidelity`: what next-token distributions of receivers lose by how they got the context, against the FP16
// hand-over. docs/evaluation.md defines prompts, arms and files.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/eval_prompt.h"
#include "eval/fidelity_arm.h"
#include "eval/fidelity_summary.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

// First member of the header of its files.
inline constexpr const char* kFidelityKind = "qkvshare_fidelity";

struct FidelityProgress {
  size_t prompt = 0;  // that is being measured, from 0
  size_t prompts = 0;
  std::string what;
  // Tokens decoded by this run, and by this run in all, about.
  size_t done = 0, total = 0;
};

struct FidelityRequest {
  std::vector<EvalPrompt> prompts;
  std::vector<FidelityArm> arms;
  size_t predict = 48;             // tokens of an answer that is not given, at most
  SessionOptions session;          // but for context, cache types and cards
  nlohmann::ordered_json made_by;  // how the prompts were made (set, seed...), for the header; an object, or null
  std::string results;             // file that grows by prompts, and from which the run goes on; empty: none
  std::function<void(const FidelityProgress&)> on_step;  // may be empty
};

// Whether all of it can be run, as far as that shows without a model: kInvalidArgument names prompt and continuation,
// or the arm (CheckKnows).
Status CheckFidelityRequest(const FidelityRequest& request);

// A line for each prompt, continuation and arm. All but the rounding of llama.cpp follows from request and model; a run
// that goes on from its results gives what it would have given at once.
//
// Errors: before the work CheckFidelityRequest, FitCardArm, ResultFile::Open, Session::Create (cache types that the
// model's heads do not fit), kOutOfRange (the longest prompt does not fit the model's context), kUnsupported (cards
// cannot be attached); kCancelled by SessionOptions::cancel, with whole prompts kept; else as MeasurePrompt.
Result<std::vector<FidelityLine>> RunFidelity(const Model& model, const FidelityRequest& request);

}  // namespace qkvshare
