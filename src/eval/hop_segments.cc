#include "eval/hop_segments.h"

#include <fmt/format.h>

#include <string>

#include "runtime/sender.h"

namespace qkvshare {

std::vector<SegmentReader> HopReaders(size_t hop, size_t hops, bool for_all) {
  std::vector<SegmentReader> readers;
  for (size_t reader = hop + 1; reader < hops; ++reader)
    readers.push_back({fmt::format("hop {}", reader), static_cast<uint32_t>(reader - hop + (for_all ? 0 : 1))});
  return readers;
}

std::vector<Segment> SegmentsOfPrompt(size_t hop, size_t hops, const HopChain& chain,
                                      const std::vector<int32_t>& prompt, const Model& model) {
  const std::string owner = fmt::format("hop {}", hop);
  std::vector<Segment> segments;
  if (hop == 0) segments = SegmentsOf(model, chain.messages, prompt, owner);
  if (segments.empty()) {
    segments.push_back({hop == 0 ? "prompt" : "user", owner, "", 0, static_cast<uint32_t>(prompt.size())});
  }
  // Examples, and what this hop alone is asked to do, are of less use to the others than the problem.
  for (size_t i = 0; i < segments.size(); ++i)
    segments[i].readers = HopReaders(hop, hops, /*for_all=*/hop == 0 && i + 1 == segments.size());
  return segments;
}

}  // namespace qkvshare
