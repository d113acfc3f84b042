// A hand-over between threads of one process: cards by pointer.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "handoff/card_channel.h"

namespace qkvshare {

// Both ends are this object; any thread may use either.
class CardQueue : public CardSink, public CardSource {
 public:
  // capacity: cards that wait at most; Send waits while there are as many.
  explicit CardQueue(size_t capacity);

  Status Send(std::shared_ptr<const Card> card) override;
  Status Finish() override;
  void Abort(const std::string& why) override;
  Result<std::shared_ptr<const Card>> Next() override;
  // The receiver's side: takes no more, and wakes a sender that waits (kIo).
  void Close();

 private:
  enum class State { kOpen, kFinished, kAborted };
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<const Card>> waiting_;
  State state_ = State::kOpen;
  bool closed_ = false;
  std::string why_;
};

}  // namespace qkvshare
