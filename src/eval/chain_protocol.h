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

struct ChainProtocol {
  size_t count = 0;  // problems; 0: all
  size_t shots = 4;  // worked examples
  size_t hops = 5;
  uint64_t seed = 1;       // which problems, in which order, and which examples
  size_t predict = 320;    // tokens of an answer at most
  int parallel = 8;        // chains side by side
  SessionOptions session;  // batch, threads, RoPE
};

struct ChainSet {
  HopRequest request;                      // but for what an arm says: how it is handed over, packs, cache types
  std::map<std::string, double> expected;  // of each chain: the number that is right
};

// One chain a problem: "gsm8k-17" is the 17th of the file. Hop 0 reads the examples as turns of a chat before it
// (shorter ones, and none of the problems), and each further hop is another agent that checks or solves again and
// answers in the same form. A smaller count takes the first of what a larger one takes.
//
// The context is made to hold the longest chain. kInvalidArgument: too few problems or examples, more hops than
// kMaxChainHops; kUnsupported: no chat template; kOutOfRange: longer than the model was trained for.
Result<ChainSet> MakeChainSet(const Model& model, const std::vector<GsmProblem>& problems,
                              const std::vector<GsmProblem>& examples, const ChainProtocol& protocol);

}  // namespace qkvshare
