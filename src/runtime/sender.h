// The sender's side of a hand-over: a session's tokens -> bit plan -> card.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "card/card_writer.h"
#include "policy/policy.h"
#include "qkvshare/status.h"
#include "runtime/session.h"

namespace qkvshare {

struct PackOptions {
  Policy policy = Policy::kUniform;
  double code_bits = 4;  // average over all key and value channels, 4 to 16
  size_t max_bytes = 0;  // of the whole file; 0: by code_bits
  std::string sender;    // agent name
  uint32_t hop = 0;
  std::vector<Segment> segments;  // empty: one segment of role "prompt"
};

struct PackTimes {
  int64_t take_us = 0;      // rows out of llama.cpp
  int64_t plan_us = 0;      // profile, costs, allocation
  int64_t quantize_us = 0;  // and checksums
};

// The queries that a policy needs of the prefill before packing: set these in PrefillOptions.
inline constexpr uint32_t kWindowTokens = 128;
inline constexpr uint32_t kWindowStride = 4;

// What can be known to be wrong before there are any tokens. kInvalidArgument: bits out of range, or a policy that
// would have no choice at these bits.
Status CheckPackOptions(const PackOptions& options);

// Packs all tokens of one sequence of the session, which stays as it is. kInvalidArgument (empty session, bits out of
// range, kLocal without a window or where the size leaves it no choice), kOutOfRange (max_bytes too small: needed and
// available), kNonFinite.
Result<PackedCard> PackSession(const Session& session, const PackOptions& options, PackTimes* times, int sequence = 0);

// One segment a message, from where the token ids of the rendered conversation grow; one segment in all where the
// template does not render messages one after the other.
std::vector<Segment> SegmentsOf(const Model& model, const std::vector<ChatMessage>& messages,
                                const std::vector<int32_t>& tokens, const std::string& owner);

}  // namespace qkvshare
