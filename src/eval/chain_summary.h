// What the files of `eval chain` say together: right answers by arm and hop, and arms against each other on the same
// problems.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "eval/proportions.h"
#include "qkvshare/status.h"

namespace qkvshare {

// Names the task in the header of a file of hops ("task").
inline constexpr const char* kChainTask = "gsm8k";

// One answer: a line of a file, as far as it counts here.
struct ChainAnswer {
  std::string chain;
  size_t hop = 0;  // from 0
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

// Whether a run with this header can be compared with the file `beside`. kInvalidArgument: it is of another run, and
// how that differs from this one; else as ReadChainResults.
Status CheckChainHeader(const nlohmann::ordered_json& header, const std::string& beside);

struct ChainHopRow {
  size_t answers = 0, right = 0, unmarked = 0, truncated = 0;
  Proportion accuracy;
};

struct ChainArmRow {
  std::string arm;
  size_t chains = 0, planned = 0;  // that are done, and that there will be
  std::vector<ChainHopRow> hops;
  size_t answers = 0, unmarked = 0, truncated = 0;  // of all hops
  // Handed on: of all cards, each by its channels, or of the cache. 0: not known (text, one hop).
  double code_bits = 0, total_bits = 0, token_bytes = 0;
  double chain_bytes = 0;  // of all cards of a chain, the mean over those that are done; 0: there are no cards
};

// One arm and the one that it is compared with, at one hop, on the problems that both have.
struct ChainPair {
  std::string arm, against;
  size_t hop = 0;
  size_t problems = 0, wins = 0, losses = 0;  // wins: right where the other is wrong
  double p = 1, adjusted_p = 1;               // exact McNemar; by Holm over the arms of this hop and `against`
};

struct ChainSummary {
  std::string model;
  size_t hops = 0;
  std::vector<ChainArmRow> arms;
  std::vector<ChainPair> pairs;  // by `against`, then arm, then hop
};

// Chains that are done in the arm that has most: all arms take them in one order.
size_t MostChains(const ChainSummary& summary);
// Whether all arms have as many, so that their shares are of the same problems.
bool SameProblems(const ChainSummary& summary);

// That others are compared with where nothing else is asked for, if it is there.
inline constexpr const char* kChainReference = "f16";

// against: arms that all others are compared with; empty: kChainReference, or else the first. kInvalidArgument: no
// results, or an arm that there is not (which there are).
Result<ChainSummary> SummarizeChains(std::span<const ChainResults> results, std::span<const std::string> against);

}  // namespace qkvshare
