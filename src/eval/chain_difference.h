// How many more answers of one arm of `eval chain` are right than of another, over all hops after a hand-over.
#pragma once

#include <cstddef>

#include "eval/bootstrap.h"
#include "eval/chain_results.h"

namespace qkvshare {

struct ChainDifference {
  size_t answers = 0;  // that both have, of hop 1 (the second) and later
  size_t blocks = 0;   // of them: those of different blocks have neither a chain nor a problem in common
  Interval right;      // share of right answers less that of the other
};

// Paired. Answers of one chain go on from each other, and those of one problem are alike, so that the interval is over
// blocks.
ChainDifference DifferenceAfterHandOver(const ChainResults& results, const ChainResults& against);

}  // namespace qkvshare
