#include "handoff/frame.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/hash.h"

namespace qkvshare {
namespace {

constexpr FrameHeader kCardFrame = {FrameType::kCard, 3, 1000, 5000};

// With a checksum that is right.
FrameBytes Changed(FrameBytes bytes, size_t at, uint8_t value) {
  bytes[at] = value;
  const uint64_t checksum = Xxh3(ByteSpan(bytes).first(40));
  std::memcpy(bytes.data() + 40, &checksum, sizeof checksum);
  return bytes;
}

TEST(FrameTest, IsReadAsItWasWritten) {
  for (const FrameHeader& header :
       {kCardFrame, FrameHeader{FrameType::kSealedCard, 0, 7, 7}, FrameHeader{FrameType::kEnd, 9, 0, 1},
        FrameHeader{FrameType::kGivenUp, 1, kMaxReasonBytes, 0}, FrameHeader{FrameType::kReceived, 0, 0, 12}}) {
    const Result<FrameHeader> read = DecodeFrame(EncodeFrame(header));
    ASSERT_TRUE(read.has_value()) << read.status().message();
    EXPECT_EQ(*read, header);
  }
}

// The layout of the document, byte by byte.
TEST(FrameTest, HasTheBytesThatAreDocumented) {
  const FrameBytes bytes = EncodeFrame(kCardFrame);
  const uint8_t start[] = {'Q', 'K', 'V', 'H',  1, 0, 1, 0, 3, 0, 0, 0,    0,
                           0,   0,   0,   0xE8, 3, 0, 0, 0, 0, 0, 0, 0x88, 0x13};
  EXPECT_EQ(std::memcmp(bytes.data(), start, sizeof start), 0);
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + 40, sizeof checksum);
  EXPECT_EQ(checksum, Xxh3(ByteSpan(bytes).first(40)));
}

TEST(FrameTest, EveryChangedBitIsSeen) {
  const FrameBytes bytes = EncodeFrame(kCardFrame);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    FrameBytes changed = bytes;
    changed[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
    EXPECT_FALSE(DecodeFrame(changed).has_value()) << bit;
  }
}

TEST(FrameTest, WhatCannotBeIsRefused) {
  const FrameBytes bytes = EncodeFrame(kCardFrame);
  EXPECT_EQ(DecodeFrame(Changed(bytes, 4, 2)).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(DecodeFrame(Changed(bytes, 6, 0)).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(DecodeFrame(Changed(bytes, 6, 6)).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(DecodeFrame(Changed(bytes, 32, 1)).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(DecodeFrame(Changed(bytes, 20, 1)).status().code(), StatusCode::kCorrupt);  // more than all so far
  for (const FrameHeader& header :
       {FrameHeader{FrameType::kCard, 0, 0, 0}, FrameHeader{FrameType::kSealedCard, 0, 0, 10},
        FrameHeader{FrameType::kEnd, 0, 1, 1}, FrameHeader{FrameType::kReceived, 0, 5, 5},
        FrameHeader{FrameType::kGivenUp, 0, kMaxReasonBytes + 1, 0}}) {
    EXPECT_EQ(DecodeFrame(EncodeFrame(header)).status().code(), StatusCode::kCorrupt);
  }
}

}  // namespace
}  // namespace qkvshare
