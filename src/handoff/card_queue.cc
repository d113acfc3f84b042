#include "handoff/card_queue.h"

#include <algorithm>
#include <utility>

namespace qkvshare {

CardQueue::CardQueue(size_t capacity) : capacity_(std::max<size_t>(capacity, 1)) {}

Status CardQueue::Send(std::shared_ptr<const Card> card) {
  if (card == nullptr) return {StatusCode::kInvalidArgument, "there is no card to send"};
  std::unique_lock lock(mutex_);
  if (state_ != State::kOpen)
    return {StatusCode::kInvalidArgument, "the hand-over has ended: nothing more can be sent"};
  changed_.wait(lock, [&] { return closed_ || state_ != State::kOpen || waiting_.size() < capacity_; });
  if (closed_) return {StatusCode::kIo, "the receiver takes no more cards"};
  if (state_ != State::kOpen) return {StatusCode::kCancelled, "the hand-over was given up: " + why_};
  waiting_.push_back(std::move(card));
  changed_.notify_all();
  return {};
}

Status CardQueue::Finish() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kOpen) return {StatusCode::kInvalidArgument, "the hand-over has ended already"};
  state_ = State::kFinished;
  changed_.notify_all();
  return closed_ ? Status(StatusCode::kIo, "the receiver took not all cards") : Status();
}

void CardQueue::Abort(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kOpen) return;
  state_ = State::kAborted;
  why_ = why;
  changed_.notify_all();
}

Result<std::shared_ptr<const Card>> CardQueue::Next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || !waiting_.empty() || state_ != State::kOpen; });
  if (closed_) return Status(StatusCode::kCancelled, "the receiver has closed the hand-over");
  if (!waiting_.empty()) {
    std::shared_ptr<const Card> card = std::move(waiting_.front());
    waiting_.pop_front();
    changed_.notify_all();
    return card;
  }
  if (state_ == State::kAborted) return Status(StatusCode::kCancelled, "the sender gave up: " + why_);
  return std::shared_ptr<const Card>();
}

void CardQueue::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  waiting_.clear();
  changed_.notify_all();
}

}  // namespace qkvshare
