// A topology's graph, taken apart: what runs after what, and what is done again and again.
#pragma once

#include <cstddef>
#include <vector>

#include "agents/topology.h"
#include "qkvshare/status.h"

namespace qkvshare {

// One agent, or a loop around others.
struct Block {
  size_t agent = 0;            // where body is empty
  const Edge* back = nullptr;  // of a loop: the edge that leads back
  std::vector<Block> body{};   // of a loop, in an order in which it can run
};

// All agents, each once, in an order in which they can run. A loop holds what lies on ways from its first agent, to
// which its edge leads back, to its last, from which it comes: other loops too, if they lie in it as a whole.
// References the topology. kInvalidArgument, with file, line and column: an agent that no edge reaches or leaves among
// others, a cycle without `rounds`, `rounds` on an edge that does not lead back, loops that overlap or wait for each
// other, more than kMaxLoops.
Result<std::vector<Block>> FindBlocks(const Topology& topology);

inline constexpr size_t kMaxLoops = 100;

}  // namespace qkvshare
