// `eval hops`: what hand-overs cost hop by hop, in next-token distributions of the same answers, against the F16
// sequence. docs/evaluation.md defines arms and files.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "eval/fidelity_summary.h"
#include "eval/hop_kl_arm.h"
#include "eval/hop_record.h"
#include "eval/hop_request.h"
#include "qkvshare/status.h"
#include "runtime/model.h"

namespace qkvshare {

// First member of the header of its files.
inline constexpr const char* kHopKlKind = "qkvshare_hop_kl";

struct HopKlProgress {
  size_t chain = 0;  // that is being measured, from 0
  size_t chains = 0;
  std::string what;
  size_t done = 0, total = 0;  // tokens decoded by this run, and by this run in all
};

struct HopKlRequest {
  // Chains as `eval chain` has them, and how they were answered (kSequence, in an F16 cache).
  HopRequest conversation;
  std::vector<HopRecord> said;  // chain by chain, hop by hop: the first so many chains
  std::vector<HopKlArm> arms;
  std::string results;                                // file that grows by chains; empty: none
  const std::atomic<bool>* cancel = nullptr;          // SessionOptions::cancel
  std::function<void(const HopKlProgress&)> on_step;  // may be empty
};

// The answers in a file of `eval chain`, of arm f16, of the first `chains` chains; 0: of all. kInvalidArgument:
// something else, or fewer chains (how many); kCorrupt: a line that is none.
Result<std::vector<HopRecord>> ReadConversations(const std::string& path, size_t chains);

// Whether the model can do the arms, before hours of work on conversations (`said` does not count): errors as
// MakeHopSession, FitChainArm, CheckHopRequest.
Status CheckHopKlArms(const Model& model, const HopKlRequest& request);

// A line for each chain, hop with an answer, and arm. All but llama.cpp's rounding follows from request and model.
// Errors: before the work as CheckHopKlArms, ResultFile::Open; kInvalidArgument: no
// conversation, or hops are missing; kCancelled, with whole chains kept; else as MeasureHopKl.
Result<std::vector<FidelityLine>> RunHopKl(const Model& model, const HopKlRequest& request);

}  // namespace qkvshare
