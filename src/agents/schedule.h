// The turns of a topology, in order: which agent works when, on whose cards. Follows from the file alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "agents/topology.h"
#include "card/card_info.h"
#include "qkvshare/status.h"

namespace qkvshare {

// One agent at work once.
struct Turn {
  size_t agent = 0;
  std::string name;           // the agent's; of the second turn of an agent with several, "critic.2"
  size_t level = 0;           // turns of one level take nothing of each other
  std::vector<size_t> takes;  // turns whose cards it begins with, in the order of the edges
  std::vector<size_t> gives;  // turns that take its card, in order
};

// By level, and then as the agents are in the file: each turn comes after those that it takes from.
struct Schedule {
  std::vector<Turn> turns;
};

inline constexpr size_t kMaxTurns = 10'000;

// In each round of a loop but the first, the loop's first agent also takes the card of the round before. What lies
// outside of a loop takes cards of its last round. kInvalidArgument as FindBlocks; kOutOfRange for more than kMaxTurns.
Result<Schedule> MakeSchedule(const Topology& topology);

// The agents that see what a turn itself adds to the context, as far as its agent shares it, and the least number of
// hops to each; the nearest first, then by turns. An agent hands on what others wrote only if it shares all of its own.
std::vector<SegmentReader> ReadersOf(const Topology& topology, const Schedule& schedule, size_t turn);

}  // namespace qkvshare
