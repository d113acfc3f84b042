// `eval sensitivity`: labels for a learned controller. docs/evaluation.md describes them and their files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "eval/eval_prompt.h"
#include "eval/sensitivity.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

// First member of the header of its files.
inline constexpr const char* kSensitivityKind = "qkvshare_sensitivity";

struct SensitivityProgress {
  size_t prompt = 0;  // that is being measured, from 0
  size_t prompts = 0;
  size_t done = 0, total = 0;  // decodes of this run
  std::string what;
};

struct SensitivityRequest {
  std::vector<EvalPrompt> prompts;
  size_t tokens = 16;  // of each prompt's context
  uint64_t seed = 1;   // of the draw
  Level level{2, 2};
  SessionOptions session;          // but for context, cache types, flash attention and cards
  nlohmann::ordered_json made_by;  // how the prompts were made, for the header
  std::string results;             // file that grows by prompts, and from which the run goes on; empty: none
  std::function<void(const SensitivityProgress&)> on_step;  // may be empty
};

// A line for each prompt and token. Errors: before the work kInvalidArgument (CheckPrompts, DrawTokens, an exact
// level), ResultFile::Open, Session::Create, kOutOfRange (a context that the model was not trained for); kCancelled by
// SessionOptions::cancel, with whole prompts kept; else as MeasureSensitivity.
Result<std::vector<SensitivityLine>> RunSensitivity(const Model& model, const SensitivityRequest& request);

struct SensitivitySummary {
  size_t tokens = 0, prompts = 0;
  double mean_kl = 0, median_kl = 0, largest_kl = 0;
  double floor = 0;        // mean over the prompts
  double above_floor = 0;  // share of the tokens whose KL is above their prompt's
  // Spearman's, of KL with each input and with the closed form's cost at the level: mean over prompts, since the
  // allocator compares tokens of one context.
  std::vector<std::pair<std::string, double>> rank_correlation;
};
// lines: at least one.
SensitivitySummary SummarizeSensitivity(std::span<const SensitivityLine> lines);

}  // namespace qkvshare
