// Whether one number puts things into the order of another.
#pragma once

#include <span>

namespace qkvshare {

// Spearman's: the correlation of the ranks, equal values having the mean of theirs. -1 to 1; 0 where one of the two has
// but one value. Both of one length.
double RankCorrelation(std::span<const double> a, std::span<const double> b);

}  // namespace qkvshare
