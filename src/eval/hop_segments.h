// Who reads what of a hop: segments for allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "card/card_info.h"
#include "eval/hop_request.h"
#include "qkvshare/status.h"
#include "runtime/model.h"

namespace qkvshare {

// How cards name the hop as a sender or reader, which they count from 0.
std::string HopOwner(size_t hop);

// Of `prompt`, the tokens that the hop reads; the whole of it where messages cannot be found in it. A part of the first
// prompt is at distance 1 from its hops, which get it as it was, and from no others. A message that has no parts is at
// the distance of the hops that follow, and what is meant for one hop is one further.
//
// kUnsupported: the tokenizer changes the text, so that a part cannot be found.
Result<std::vector<Segment>> SegmentsOfPrompt(size_t hop, size_t hops, const HopChain& chain,
                                              const std::vector<int32_t>& prompt, const Model& model);

// The answer of `tokens` tokens that follows a prompt of `read`. Where hops have parts of their own, it is not what
// they work on.
Segment SegmentOfAnswer(size_t hop, size_t hops, const HopChain& chain, uint32_t read, uint32_t tokens);

}  // namespace qkvshare
