// One arm of `eval chain`: its chains, run and scored, in a file of results.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/chain_arm.h"
#include "eval/chain_protocol.h"
#include "eval/hop_record.h"
#include "qkvshare/status.h"
#include "runtime/model.h"

namespace qkvshare {

// What an answer is worth. A hop that was not reached, since its chain was full, has none, and is truncated.
struct ChainScore {
  std::optional<double> answer;  // none: it has no marked line with a number
  bool right = false;
  bool truncated = false;  // cut by the limit of tokens or by the context
};
ChainScore ScoreOf(const HopRecord& record, double expected);

struct ChainRunHooks {
  std::vector<std::string> beside;            // files of other arms, which this one must be comparable with
  const std::atomic<bool>* cancel = nullptr;  // while it is true everything stops (SessionOptions::cancel)
  // Called before each hop of a group, with hops of chains that are done, also in an earlier run. May be empty.
  std::function<void(size_t done, size_t hop)> on_hop;
};

// Whether the model can do it, before hours of work on others: errors as MakeHopSession, FitChainArm, CheckHopRequest.
Status CheckChainArm(const Model& model, const ChainSet& set, const ChainArm& arm);

// Runs what `path` does not have yet. Then the file has a line for each chain and hop: what HopJson gives, and
// "problem", "answer" (null: none), "expected", "right", "marked", "truncated". Its header has "task", "arm",
// "expected" (a digest) and "channels" (values of keys and values a token, all layers). Errors as MakeHopSession,
// FitChainArm, CheckChainHeader (before the work) and RunHops.
Status RunChainArm(const Model& model, const ChainSet& set, const ChainArm& arm, const std::string& path,
                   const ChainRunHooks& hooks);

}  // namespace qkvshare
