// What the lines of fidelity files say together: per arm and kind of continuation, with intervals over prompts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "eval/bootstrap.h"
#include "qkvshare/status.h"

namespace qkvshare {

// One arm on one continuation: a line of a fidelity file.
struct FidelityLine {
  std::string prompt, continuation, kind, arm;
  std::vector<double> kl;                // KL(FP16 || arm) of each prediction after the instruction, nats; not empty
  std::vector<size_t> other;             // predictions whose most likely token is another one than FP16's, ascending
  size_t answer_tokens = 0;              // the last so many predictions are of the answer
  double answer_logprob = 0;             // log-probability of the whole answer by the arm, nats
  double ref_answer_logprob = 0;         // and by FP16
  uint64_t bytes = 0;                    // handed over
  double code_bits = 0, total_bits = 0;  // a channel
};
nlohmann::ordered_json FidelityLineJson(const FidelityLine& line);
// kCorrupt where it is none.
Result<FidelityLine> ParseFidelityLine(const nlohmann::ordered_json& json);

// An arm against another, over the same predictions.
struct FidelityAgainst {
  std::string arm;
  Interval kl_ratio;         // of mean KL
  Interval answer_kl_ratio;  // of mean KL of answers
  Interval same;             // difference of the shares
  Interval answer_logprob;   // difference
};

struct FidelityRow {
  std::string arm;
  std::string kind;  // empty: all kinds together
  size_t prompts = 0, continuations = 0, predictions = 0;
  Interval mean_kl;
  Interval answer_kl;  // mean over tokens of answers, without the turn before them; unknown where there is no answer
  double median_kl = 0, p99_kl = 0, worst_kl = 0;
  std::string worst_at;     // "PROMPT/CONTINUATION"
  Interval same;            // share
  Interval answer_logprob;  // mean over tokens of answers of logprob - ref_logprob; unknown where there is no answer
  double code_bits = 0, total_bits = 0, bytes = 0;  // means over continuations
  std::vector<FidelityAgainst> against;
};

struct FidelitySummary {
  std::vector<std::string> kinds;     // in order of appearance
  std::vector<FidelityRow> rows;      // all kinds: arm by arm, in order of appearance; then each kind, where several
  std::vector<std::string> left_out;  // prompts that not every arm has
};

struct FidelitySummaryOptions {
  std::vector<std::string> against;  // arms that all others are compared with; empty: the first
};

// lines: of one file, or of several whose prompts are the same. kInvalidArgument: no lines, an arm that there is not
// (which there are), a continuation twice, or whose predictions are not as many in every arm.
Result<FidelitySummary> SummarizeFidelity(std::span<const FidelityLine> lines, const FidelitySummaryOptions& options);

// Numbers that are not known are null.
nlohmann::ordered_json FidelityJson(const FidelitySummary& summary);

}  // namespace qkvshare
