// The sender's own anchors: what those who allocate bits after it may go by.
#pragma once

#include <cstddef>
#include <vector>

#include "policy/token_costs.h"
#include "quant/anchor.h"

namespace qkvshare {

inline constexpr size_t kMostAnchors = 64;

// The tokens from `first` on that got the most attention of a window over all layers, heads and queries, at most
// kMostAnchors; weight: their share of all attention. Ascending by token.
std::vector<Anchor> MakeAnchors(const AttentionStats& stats, size_t first);

}  // namespace qkvshare
