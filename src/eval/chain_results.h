// What the files of `eval chain` hold: answers, and whether they are right.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "qkvshare/status.h"

namespace qkvshare {

// Names the task in the header of a file of hops ("task").
inline constexpr const char* kChainTask = "gsm8k";

// One answer: a line of a file, as far as it counts here.
struct ChainAnswer {
  std::string chain;
  std::string problem;  // that it answers
  size_t hop = 0;       // from 0
  bool right = false, marked = false, truncated = false;
  size_t card_tokens = 0, card_bytes = 0;  // 0: no card was handed on
  double code_bits = 0, total_bits = 0;
};

// One arm's file.
struct ChainResults {
  std::string arm, model, model_fingerprint;
  size_t hops = 0, chains = 0;  // that there will be
  // Of the context's own cache, a channel and a token; 0: cards or text are handed on.
  double cache_code_bits = 0, cache_total_bits = 0, cache_token_bytes = 0;
  std::vector<ChainAnswer> answers;
};

// Reads arms' files, whole or not. kInvalidArgument: one that is of something else, two of one arm, or two of runs that
// cannot be compared (both files, and what differs: all but the arm must be the same); kCorrupt names the line.
Result<std::vector<ChainResults>> ReadChainResults(std::span<const std::string> paths);

// By chain and hop.
using HopKey = std::pair<std::string, size_t>;
std::map<HopKey, bool> RightAnswers(const ChainResults& results);

// Whether a run with this header can be compared with the file `beside`. kInvalidArgument: it is of another run, and
// how that differs from this one; else as ReadChainResults.
Status CheckChainHeader(const nlohmann::ordered_json& header, const std::string& beside);

}  // namespace qkvshare
