// Chains of hops, for evaluation: in each hop a chain takes what it has so far as cards, reads the user's next turn and
// answers it; what it read and said becomes one more card. Many chains run side by side as sequences of one
// context.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "eval/hop_record.h"
#include "qkvshare/status.h"
#include "runtime/generate.h"
#include "runtime/sender.h"
#include "runtime/session.h"

namespace qkvshare {

struct HopChain {
  std::string id;                     // letters, digits, '-', '_' and '.': it names files
  std::vector<ChatMessage> messages;  // the first prompt, by the model's chat template, ...
  std::vector<int32_t> tokens;        // ... or its tokens, where there are no messages
  std::vector<std::string> turns;     // what the user says in hop 1, 2, ...
};

struct HopRequest {
  std::vector<HopChain> chains;
  size_t hops = 1;
  int parallel = 1;         // chains that are decoded together: the first so many, then the next
  uint32_t context = 2048;  // tokens of a chain at most; those that follow its cards take memory
  // Else nothing is packed and each chain's sequence simply goes on: the same tokens in the same calls, in the
  // context's own cache ("f16").
  bool cards = true;
  // Of each hop but the last, whose card nobody would take; one: of all. Sender, hop and segments are filled in.
  std::vector<PackOptions> packs = {PackOptions()};
  // Of each answer. Each chain and hop has dice of its own, by the seed, which must not be random.
  GenerateOptions generate;
  SessionOptions session;  // but for context, sequences and cards
  std::string results;     // file that grows group by group, and from which the run goes on; empty: none
  // Keeps each card as CHAIN.HOP.card; empty: they are dropped. Where a run goes on, those of what is done must be
  // there.
  std::string card_folder;
  // Called before each hop of a group, with the chains that are done. May be empty.
  std::function<void(size_t chains, size_t hop)> on_hop;
};

// A session for the request. kUnsupported: cards cannot be attached (why), or several sequences with a RoPE that
// depends on the size of the context; else as Session::Create.
Result<std::unique_ptr<Session>> MakeHopSession(const Model& model, const HopRequest& request);

// Runs all chains in a session of MakeHopSession; returns a record for each chain and hop, chain by chain. All but the
// times follows from the request, model, software and threads: what is decoded together goes by the order of chains
// alone, and a run that goes on from its results gives what it would have given at once. (With another `parallel` or
// batch it is the same but for llama.cpp's rounding, see Session::DecodeTogether.)
//
// An answer may be empty, or be stopped at once: its card has the prompt and what was sampled, and the next hop
// follows. Where a chain's context is full (stop "context") an answer is cut; a turn that does not fit is not read, and
// the hops from there on have read_tokens 0.
//
// The session is used up: its sequences are left with something, and queries are kept where a policy wants them.
//
// Errors: before the work kInvalidArgument (which chain, which option) and as HopFile::Open; kCancelled by
// Session::Cancel, with the groups that are whole kept; else as Prefill, GenerateMany, PackSession.
Result<std::vector<HopRecord>> RunHops(Session* session, const HopRequest& request);

}  // namespace qkvshare
