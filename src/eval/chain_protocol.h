// The protocol of `eval chain`: what the agents of a chain are asked, the same for every arm. docs/evaluation.md has it
// in words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "eval/gsm8k_problems.h"
#include "eval/hop_request.h"
#include "qkvshare/status.h"
#include "runtime/model.h"

namespace qkvshare {

inline constexpr size_t kMaxChainHops = 16;
inline constexpr size_t kMaxShots = 26;  // named by letters

struct ChainProtocol {
  size_t count = 0;  // problems, and so chains: a multiple of hops; 0: all, as far as they make whole sheets
  size_t shots = 4;  // worked examples
  size_t hops = 5;
  uint64_t seed = 1;       // which problems, in which order, and which examples
  size_t predict = 320;    // tokens of an answer at most
  int parallel = 8;        // chains side by side
  SessionOptions session;  // batch, threads, RoPE
};

// What one hop solves.
struct ChainTask {
  std::string problem;  // "gsm8k-17" is the 17th of the file
  double expected = 0;  // the number that is right
};

struct ChainSet {
  HopRequest request;  // but for what an arm says: how it is handed over, packs, cache types
  std::map<std::string, std::vector<ChainTask>> tasks;  // of each chain: of its hops
};

// As many chains as problems, "sheet-1" and so on. Hop 0 reads a sheet of as many problems as there are hops, after the
// examples (short ones, and none of the problems), and solves the first; each further hop is another agent that is
// asked for the next, and gets the sheet by what is handed over. A block of `hops` chains has one set of problems, each
// chain's turned one further: so each problem is solved once at each hop. A smaller count takes the first of what a
// larger one takes.
//
// The context is made to hold the longest chain. kInvalidArgument: too few problems or examples, too many hops or
// shots, a count that is no multiple of the hops; kUnsupported: no chat template; kOutOfRange: longer than the model
// was trained for.
Result<ChainSet> MakeChainSet(const Model& model, const std::vector<GsmProblem>& problems,
                              const std::vector<GsmProblem>& examples, const ChainProtocol& protocol);

}  // namespace qkvshare
