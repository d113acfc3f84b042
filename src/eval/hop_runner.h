// Chains of hops, for evaluation: in each hop a chain takes what it has so far, reads the user's next turn and answers
// it; what it read and said is handed on, as a card or in another way (HandOver). Many chains run side by side as
// sequences of one context.
#pragma once

#include <memory>
#include <vector>

#include "eval/hop_record.h"
#include "eval/hop_request.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

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
// Errors: before the work as CheckHopRequest and ResultFile::Open; kCancelled by Session::Cancel, with the groups that
// are whole kept; else as Prefill, GenerateMany, PackSession.
Result<std::vector<HopRecord>> RunHops(Session* session, const HopRequest& request);

}  // namespace qkvshare
