// A topology: agents, and who hands what to whom. Plain data, as a file gave it: defaults and inputs are filled in.
// docs/agents.md explains the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agents/place.h"
#include "policy/policy.h"
#include "runtime/generate.h"

namespace qkvshare {

// What a card may take.
struct Budget {
  double bits = 4;         // average over all key and value channels, 2 to 16
  uint64_t max_bytes = 0;  // of the whole file; 0: by bits

  friend bool operator==(const Budget&, const Budget&) = default;
};

// "4 bits", "120000 bytes".
std::string BudgetText(const Budget& budget);

enum class Placement {
  kSame,    // in the process of the run
  kWorker,  // in a process of its own
};
const char* PlacementName(Placement placement);

// Roles of what an agent itself adds to the context, as its cards' segments have them.
inline constexpr std::string_view kOwnRoles[] = {"system", "user", "generated"};

struct Agent {
  std::string name;
  std::string system;  // empty: no system message
  std::string prompt;  // the user's turn
  size_t predict = 128;
  SamplingOptions sampling;
  std::vector<std::string> stop;    // texts that end the answer
  std::vector<std::string> shares;  // of kOwnRoles, what others may see; empty: all
  Budget budget;                    // of its card
  Policy policy = Policy::kUniform;
  bool probe = false;  // its receivers' prompts are run over its cache before it packs
  Placement placement = Placement::kSame;
  uint32_t timeout_s = 600;  // a worker may be silent for this long
  Place place;
};

struct Edge {
  std::vector<size_t> from;  // agents, in the order in which their cards are taken; no two alike
  size_t to = 0;
  uint32_t rounds = 0;  // 0: leads on. Else it leads back, and what lies between its ends is done this often in all
  Place place;
};

// No two edges have the same sender and the same receiver. An edge that leads back has one sender.
struct Topology {
  std::string file;      // as it was given, for errors
  std::string model;     // as the flag -m; empty: not said
  uint32_t context = 0;  // tokens of each turn; 0: as many as it needs
  std::vector<Agent> agents;
  std::vector<Edge> edges;
};

inline constexpr size_t kMaxAgents = 1000;
inline constexpr size_t kMaxLinks = 10'000;  // pairs of sender and receiver
inline constexpr uint32_t kMaxRounds = 1000;

}  // namespace qkvshare
