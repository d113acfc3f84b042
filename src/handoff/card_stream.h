// A hand-over through a byte stream: the two ends of a pipe or of a socket. docs/handoff.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "handoff/card_channel.h"
#include "handoff/frame.h"
#include "handoff/sealed_card.h"
#include "handoff/wire.h"

namespace qkvshare {

class CardStreamWriter : public CardSink {
 public:
  // share: Send copies a card into shared memory and passes that on, instead of its bytes (sockets of this machine
  // only).
  CardStreamWriter(Wire wire, bool share) : wire_(std::move(wire)), share_(share) {}
  ~CardStreamWriter() override;
  CardStreamWriter(const CardStreamWriter&) = delete;
  CardStreamWriter& operator=(const CardStreamWriter&) = delete;

  Status Send(std::shared_ptr<const Card> card) override;
  // One that lies in shared memory already: nothing is copied. kInvalidArgument: the stream is no socket.
  Status SendSealed(const SealedCard& card);
  Status Finish() override;
  void Abort(const std::string& why) override;

 private:
  Status CheckOpen() const;
  Status SendFrame(FrameType type, uint64_t bytes, int pass = -1);
  Status Ended(Status status);
  Status ReadAnswer();
  void KeepLent(std::shared_ptr<const Card> card);

  Wire wire_;
  bool share_;
  bool ended_ = false;
  uint64_t frames_ = 0, total_bytes_ = 0;
  std::deque<std::shared_ptr<const Card>> lent_;  // whose bytes the pipe may refer to
};

struct CardStreamLimits {
  uint64_t card_bytes = uint64_t{1} << 36;
  size_t cards = size_t{1} << 16;
};

class CardStreamReader : public CardSource {
 public:
  // own: at the other end is a process of this user, so that digests need not be checked.
  CardStreamReader(Wire wire, bool own, const CardStreamLimits& limits = {})
      : wire_(std::move(wire)), own_(own), limits_(limits) {}

  Result<std::shared_ptr<const Card>> Next() override;

 private:
  using NextCard = Result<std::shared_ptr<const Card>>;
  NextCard ReadNext();
  Result<FrameHeader> ReadHeader(Descriptor* passed);
  NextCard ReadCard(const FrameHeader& header);
  NextCard TakeSealed(const FrameHeader& header, Descriptor passed) const;
  Status ReadReason(const FrameHeader& header);
  Status Answer();

  Wire wire_;
  bool own_;
  CardStreamLimits limits_;
  std::optional<Status> ended_;  // after the last card (ok), or an error
  uint64_t frames_ = 0, total_bytes_ = 0;
};

}  // namespace qkvshare
