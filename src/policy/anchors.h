// What an agent attended to, of its whole context: what those who allocate bits after it may go by.
#pragma once

#include <cstddef>
#include <vector>

#include "policy/token_costs.h"
#include "quant/anchor.h"

namespace qkvshare {

inline constexpr size_t kMostAnchors = 64;
// Where attention is measured for anchors alone, every fourth layer tells as much as all (docs/policies.md).
inline constexpr size_t kAnchorLayerStep = 4;

// The tokens that got the most attention of a window over all layers, heads and queries, at most kMostAnchors; weight:
// their share of all attention. Ascending by token. stats: of a whole context, whose first kSinkTokens are left out.
std::vector<Anchor> MakeAnchors(const AttentionStats& stats);

}  // namespace qkvshare
