#include "handoff/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "base/hash.h"

namespace qkvshare {
namespace {

constexpr char kMagic[] = {'Q', 'K', 'V', 'H'};
constexpr uint16_t kVersion = 1;
constexpr size_t kVersionAt = 4, kTypeAt = 6, kIndexAt = 8, kBytesAt = 16, kTotalAt = 24, kReservedAt = 32,
                 kChecksumAt = 40;

Status Corrupt(const std::string& what) { return {StatusCode::kCorrupt, "the stream of cards is damaged: " + what}; }

template <typename T>
void Put(T value, size_t at, FrameBytes* bytes) {
  std::memcpy(bytes->data() + at, &value, sizeof value);
}

template <typename T>
T Get(std::span<const uint8_t, kFrameHeaderBytes> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

FrameBytes EncodeFrame(const FrameHeader& header) {
  FrameBytes bytes{};
  std::copy(std::begin(kMagic), std::end(kMagic), bytes.begin());
  Put(kVersion, kVersionAt, &bytes);
  Put(static_cast<uint16_t>(header.type), kTypeAt, &bytes);
  Put(header.index, kIndexAt, &bytes);
  Put(header.bytes, kBytesAt, &bytes);
  Put(header.total_bytes, kTotalAt, &bytes);
  Put(Xxh3(ByteSpan(bytes).first(kChecksumAt)), kChecksumAt, &bytes);
  return bytes;
}

Result<FrameHeader> DecodeFrame(std::span<const uint8_t, kFrameHeaderBytes> bytes) {
  if (!std::equal(std::begin(kMagic), std::end(kMagic), bytes.begin()))
    return Corrupt("no frame begins where one should");
  if (const auto version = Get<uint16_t>(bytes, kVersionAt); version != kVersion) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("the stream of cards has version {}, this software knows {}", version, kVersion));
  }
  if (Get<uint64_t>(bytes, kChecksumAt) != Xxh3(ByteSpan(bytes).first(kChecksumAt)))
    return Corrupt("the checksum of a frame is wrong");
  const auto type = Get<uint16_t>(bytes, kTypeAt);
  if (type < static_cast<uint16_t>(FrameType::kCard) || type > static_cast<uint16_t>(FrameType::kReceived))
    return Corrupt(fmt::format("a frame of type {}", type));
  if (Get<uint64_t>(bytes, kReservedAt) != 0) return Corrupt("reserved bytes of a frame are not zero");
  FrameHeader header{static_cast<FrameType>(type), Get<uint64_t>(bytes, kIndexAt), Get<uint64_t>(bytes, kBytesAt),
                     Get<uint64_t>(bytes, kTotalAt)};
  const bool of_a_card = header.type == FrameType::kCard || header.type == FrameType::kSealedCard;
  const bool sized = of_a_card ? header.bytes > 0 && header.bytes <= header.total_bytes
                               : header.bytes <= (header.type == FrameType::kGivenUp ? kMaxReasonBytes : 0);
  if (!sized) return Corrupt(fmt::format("a frame of type {} with {} bytes", type, header.bytes));
  return header;
}

}  // namespace qkvshare
