// What receivers of an earlier run attended to, for those who pack the same text again.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "qkvshare/status.h"
#include "quant/anchor.h"

namespace qkvshare {

// Names what there is of a run: other turns or cards, another id. kNotFound, kInvalidArgument (no folder of a run),
// kIo, kCorrupt.
Result<std::string> EarlierRunId(const std::string& folder);

// Anchors on the own tokens of a turn, counted from the first of them, that all turns of an earlier run that took its
// card over left there, as far as the turn's tokens were the same there. None where there is no such turn.
// Errors: EarlierRunId, and those of its cards.
Result<std::vector<Anchor>> EarlierAnchors(const std::string& folder, const std::string& turn,
                                           std::span<const int32_t> own_tokens);

}  // namespace qkvshare
