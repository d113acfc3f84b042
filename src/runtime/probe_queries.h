// Queries of receivers over a sender's cache: a direct measurement of what they will look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "runtime/session.h"

namespace qkvshare {

// Of each instruction, evenly spread, its last token included.
inline constexpr size_t kProbeQueries = 16;

// Decodes each instruction (what a receiver is known to read) after the sequence's tokens, each as if it were the only
// one, keeps its queries, and takes it back: PackOptions::probe for packing this sequence as it is. The queries see the
// sequence's tokens, not each other's.
//
// Afterwards the session is as it was, window and all, but for the logits, which are those of other tokens and so gone:
// who wants to generate decodes the last token again (Truncate, Prefill). kInvalidArgument (no instructions, an empty
// one, an unknown token, nothing to pack after attached cards), kOutOfRange (the longest does not fit beside what is
// there; needed and available), kUnsupported as Session::Prefill, kCancelled: nothing is changed but, past the checks,
// the logits. Cost: prefill of all instructions at this depth.
Result<AttentionWindow> ProbeWindow(Session* session, std::span<const std::vector<int32_t>> instructions,
                                    int sequence = 0);

}  // namespace qkvshare
