// One conversation of `eval hops`: its hops one after the other, answers given, by every arm, against the F16 sequence
// of the same tokens.
#pragma once

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
#include "runtime/session.h"

namespace qkvshare {

struct HopKlSetup {
  struct Arm {
    HopKlWay way = HopKlWay::kChain;
    std::string name;
    HopRequest request;
    // Of its own where its sequence goes on; arms that hand over cards may share one.
    Session* session = nullptr;
  };
  // As the conversation was answered: in an F16 cache, where the sequence goes on.
  HopRequest request;
  Session* reference = nullptr;  // used by nobody else
  std::vector<Arm> arms;
  // Called as work goes on, with what it is at and tokens decoded since the last call. May be empty.
  std::function<void(const std::string& what, size_t tokens)> on_decoded;
};

// A line of a file of results: one arm in one hop. Its prompt is the chain's id; continuation and kind are "hop 1",
// "hop 2"...; bytes and bits are of all that the hop got, 0 in the first hop.
struct HopKlResult {
  FidelityLine line;
  size_t tokens = 0;  // before the hop
};

// The tokens of an answer, its end token among them. Predictions of these are what is compared.
std::vector<int32_t> AnswerTokens(const HopRecord& record);

// A result for each hop that has an answer, and arm: all arms of the first hop, and so on. said: what was answered in
// each hop of chain `index`. Memory: logits of one answer three times, and the cards of all arms.
//
// kInvalidArgument where the conversation is not one of this chain; else as HopSteps, PackSession; kNonFinite,
// kCancelled.
Result<std::vector<HopKlResult>> MeasureHopKl(const HopKlSetup& setup, size_t index, std::span<const HopRecord> said);

}  // namespace qkvshare
