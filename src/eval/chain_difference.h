// How many more answers of one arm of `eval chain` are right than of another, over all hops after a hand-over.
#pragma once

#include <cstddef>

#include "eval/bootstrap.h"
#include "eval/chain_results.h"

namespace qkvshare {

struct ChainDifference {
  size_t problems = 0, answers = 0;  // that both have, of hop 1 (the second) and later
  Interval right;                    // share of right answers less that of the other
};

// Paired: a problem is solved once at each hop, so that its answers are no independent samples. The interval is over
// problems.
ChainDifference DifferenceAfterHandOver(const ChainResults& results, const ChainResults& against);

}  // namespace qkvshare
