// What one chain does in one hop, step by step: for chains that answer side by side (hop_group), and for those whose
// answers are given (hop_kl_chain).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "card/card_info.h"
#include "eval/hop_record.h"
#include "eval/hop_request.h"
#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "runtime/card_list.h"
#include "runtime/model.h"
#include "runtime/sender.h"
#include "runtime/session.h"

namespace qkvshare {

// One chain, in its sequence of a session.
struct ChainState {
  const HopChain* chain = nullptr;
  size_t index = 0;  // of all chains
  int sequence = 0;
  std::vector<CardPart> cards;    // what it has so far, where hops are packed
  std::vector<std::string> said;  // answers so far, where they are handed on as text
  std::string open_turn;          // text of the assistant's turn that the next user's turn ends
  bool full = false;              // a turn did not fit
  std::vector<int32_t> prompt;    // of this hop
  std::vector<Segment> segments;
  AttentionWindow probe;  // of the next hop's prompt
  HopRecord record;       // of this hop

  std::span<const int32_t> last() const { return std::span(prompt).last(1); }
};

// Of a request that CheckHopRequest has passed, in a session of MakeHopSession. Both must outlive it.
class HopSteps {
 public:
  HopSteps(Session* session, const HopRequest& request)
      : session_(*session), model_(session->model()), request_(request) {}

  // Begins a record. Takes what the chain has, and reads this hop's prompt but for its last token; where it does not
  // fit the chain is full, here and in all hops that follow. kInvalidArgument: the prompt is empty; else as Prefill and
  // InjectCards.
  Status Begin(size_t hop, ChainState* chain);
  // The record has its answer, which the session holds.
  void EndAnswer(ChainState* chain) const;
  // Finds what the next hop's prompt will look at, for the policy. Errors as ProbeWindow.
  Status Probe(size_t hop, std::span<ChainState* const> going);
  // Packs what this hop added, or all that there is, and leaves the sequence empty. Errors as PackSession.
  Status End(size_t hop, ChainState* chain);

 private:
  Result<std::vector<int32_t>> PromptOf(size_t hop, const ChainState& chain) const;
  size_t Taken(const ChainState& chain) const;
  Result<std::shared_ptr<const Card>> Hand(size_t hop, const PackedCard& packed, ChainState* chain) const;

  Session& session_;
  const Model& model_;
  const HopRequest& request_;
};

// What is packed of a hop: the options of the request, with sender, hop, and the seed of this chain and hop.
PackOptions HopPackOptions(const HopRequest& request, size_t hop, const std::string& chain);

}  // namespace qkvshare
