// Headers of what goes over a stream of cards. docs/handoff.md, "Frames"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "qkvshare/status.h"

namespace qkvshare {

// Stored: never renumbered.
enum class FrameType : uint16_t {
  kCard = 1,        // its bytes follow
  kSealedCard = 2,  // a descriptor comes with the header
  kEnd = 3,
  kGivenUp = 4,  // why follows
  kReceived = 5,
};

struct FrameHeader {
  FrameType type = FrameType::kEnd;
  uint64_t index = 0;        // in its direction
  uint64_t bytes = 0;        // of the card, or of the text
  uint64_t total_bytes = 0;  // of all cards so far

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

inline constexpr size_t kFrameHeaderBytes = 48;
inline constexpr size_t kMaxReasonBytes = 4096;
using FrameBytes = std::array<uint8_t, kFrameHeaderBytes>;

FrameBytes EncodeFrame(const FrameHeader& header);
// kUnsupported: another version; else kCorrupt says what is wrong.
Result<FrameHeader> DecodeFrame(std::span<const uint8_t, kFrameHeaderBytes> bytes);

}  // namespace qkvshare
