// The two ends of a hand-over: cards in order, then the end. docs/handoff.md
#pragma once

#include <memory>
#include <string>

#include "card/card.h"
#include "qkvshare/status.h"

namespace qkvshare {

// The sender's end. After an error, Finish or Abort nothing more can be sent (kInvalidArgument).
class CardSink {
 public:
  virtual ~CardSink() = default;
  // Returns when the card has left. Waits while the receiver is slow. kIo: the receiver is gone, or stands still;
  // kCancelled.
  virtual Status Send(std::shared_ptr<const Card> card) = 0;
  // There are no more. Where the receiver can answer it waits for its word that it has them all.
  virtual Status Finish() = 0;
  // The hand-over has failed on this side: the receiver is told why, if it still listens. A sink that is destroyed
  // without Finish aborts.
  virtual void Abort(const std::string& why) = 0;
};

// The receiver's end.
class CardSource {
 public:
  virtual ~CardSource() = default;
  // Waits for the next card, which is whole and checked; null after the last one. The error is final: each later call
  // returns it again. kIo: cut, or the sender stands still; kCancelled: by the caller, or the sender gave up (why);
  // kCorrupt, kUnsupported: what came is not what was announced, or no card; kOutOfRange: past a limit.
  virtual Result<std::shared_ptr<const Card>> Next() = 0;
};

}  // namespace qkvshare
