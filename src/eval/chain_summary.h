// What the files of `eval chain` say together: right answers by arm and hop, and arms against each other on the same
// problems.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "eval/chain_difference.h"
#include "eval/chain_results.h"
#include "eval/proportions.h"
#include "qkvshare/status.h"

namespace qkvshare {

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

// The same two, over all hops after a hand-over.
struct ChainDifferenceRow {
  std::string arm, against;
  ChainDifference difference;
};

struct ChainSummary {
  std::string model;
  size_t hops = 0;
  std::vector<ChainArmRow> arms;
  std::vector<ChainPair> pairs;                 // by `against`, then arm, then hop
  std::vector<ChainDifferenceRow> differences;  // by `against`, then arm
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
