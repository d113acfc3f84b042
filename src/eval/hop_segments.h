// Who reads what of a hop: the segments of its prompt, for allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "card/card_info.h"
#include "eval/hop_request.h"
#include "runtime/model.h"

namespace qkvshare {

// The hops after `hop` of `hops`. What is meant for this hop, and not for all, is a hop further from them.
std::vector<SegmentReader> HopReaders(size_t hop, size_t hops, bool for_all);

// Of `prompt`, the tokens that the hop reads. The whole of it where messages cannot be found in it.
std::vector<Segment> SegmentsOfPrompt(size_t hop, size_t hops, const HopChain& chain,
                                      const std::vector<int32_t>& prompt, const Model& model);

}  // namespace qkvshare
