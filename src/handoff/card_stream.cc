#include "handoff/card_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "handoff/card_pages.h"

namespace qkvshare {
namespace {

constexpr const char* kNoReason = "it stopped before it had sent everything";

ByteSpan BytesOf(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

Status Corrupt(std::string what) { return {StatusCode::kCorrupt, std::move(what)}; }

}  // namespace

CardStreamWriter::~CardStreamWriter() {
  CardStreamWriter::Abort(kNoReason);
  static_cast<void>(wire_.WaitUntilRead());
}

Status CardStreamWriter::CheckOpen() const {
  if (!ended_) return {};
  return {StatusCode::kInvalidArgument, "the hand-over has ended: nothing more can be sent"};
}

// After an error the receiver cannot tell any more where a frame begins.
Status CardStreamWriter::Ended(Status status) {
  if (!status.ok()) ended_ = true;
  return status;
}

Status CardStreamWriter::SendFrame(FrameType type, uint64_t bytes, int pass) {
  return wire_.Write(EncodeFrame({type, frames_++, bytes, total_bytes_}), pass);
}

Status CardStreamWriter::Send(std::shared_ptr<const Card> card) {
  QKV_RETURN_IF_ERROR(CheckOpen());
  if (card == nullptr) return {StatusCode::kInvalidArgument, "there is no card to send"};
  const ByteSpan bytes = card->bytes();
  if (share_) {
    QKV_ASSIGN_OR_RETURN(const SealedCard shared, SealedCard::Make({&bytes, 1}));
    return SendSealed(shared);
  }
  total_bytes_ += bytes.size();
  QKV_RETURN_IF_ERROR(Ended(SendFrame(FrameType::kCard, bytes.size())));
  if (!wire_.is_socket()) KeepLent(card);
  return Ended(wire_.Lend(bytes));
}

// A pipe refers to no more than it holds.
void CardStreamWriter::KeepLent(std::shared_ptr<const Card> card) {
  size_t later = 0, keep = 0;
  for (; keep < lent_.size() && later < Wire::kPipeBytes; ++keep) later += lent_[lent_.size() - 1 - keep]->file_bytes();
  lent_.erase(lent_.begin(), lent_.end() - static_cast<ptrdiff_t>(keep));
  lent_.push_back(std::move(card));
}

Status CardStreamWriter::SendSealed(const SealedCard& card) {
  QKV_RETURN_IF_ERROR(CheckOpen());
  if (!wire_.is_socket())
    return {StatusCode::kInvalidArgument, "shared memory is passed on through a Unix socket, and this is none"};
  total_bytes_ += card.card()->file_bytes();
  return Ended(SendFrame(FrameType::kSealedCard, card.card()->file_bytes(), card.file()));
}

Status CardStreamWriter::Finish() {
  QKV_RETURN_IF_ERROR(CheckOpen());
  ended_ = true;
  QKV_RETURN_IF_ERROR(SendFrame(FrameType::kEnd, 0));
  return wire_.is_socket() ? ReadAnswer() : wire_.WaitUntilRead();
}

Status CardStreamWriter::ReadAnswer() {
  FrameBytes bytes{};
  QKV_ASSIGN_OR_RETURN(const size_t n, wire_.Read(bytes));
  if (n < bytes.size()) return {StatusCode::kIo, wire_.peer() + " is gone before it has said that it has everything"};
  QKV_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrame(bytes));
  if (header.type == FrameType::kReceived && header.total_bytes == total_bytes_) return {};
  return Corrupt(fmt::format("{} has {} of {} bytes", wire_.peer(), header.total_bytes, total_bytes_));
}

// Best effort: a receiver that is not told why sees the end of the stream all the same.
void CardStreamWriter::Abort(const std::string& why) {
  if (ended_) return;
  ended_ = true;
  wire_.Hurry();
  const std::string reason = why.substr(0, kMaxReasonBytes);
  if (SendFrame(FrameType::kGivenUp, reason.size()).ok()) static_cast<void>(wire_.Write(BytesOf(reason)));
}

Result<std::shared_ptr<const Card>> CardStreamReader::Next() {
  if (ended_ && ended_->ok()) return std::shared_ptr<const Card>();
  if (ended_) return *ended_;
  NextCard card = ReadNext();
  if (!card) {
    ended_ = card.status();
  } else if (*card == nullptr) {
    ended_ = Status();
  }
  return card;
}

Result<FrameHeader> CardStreamReader::ReadHeader(Descriptor* passed) {
  FrameBytes bytes{};
  QKV_ASSIGN_OR_RETURN(const size_t n, wire_.Read(bytes, passed));
  if (n < bytes.size()) {
    return Status(StatusCode::kIo, fmt::format("{} is gone before the end: {} came", wire_.peer(),
                                               frames_ == 1 ? "1 card" : fmt::format("{} cards", frames_)));
  }
  QKV_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrame(bytes));
  const bool of_a_card = header.type == FrameType::kCard || header.type == FrameType::kSealedCard;
  if (header.index != frames_ || header.total_bytes != total_bytes_ + (of_a_card ? header.bytes : 0))
    return Corrupt(fmt::format("{} counts its cards wrongly, or some are missing", wire_.peer()));
  if (passed->valid() != (header.type == FrameType::kSealedCard))
    return Corrupt(fmt::format("{} {} a descriptor", wire_.peer(), passed->valid() ? "sent" : "did not send"));
  ++frames_;
  return header;
}

CardStreamReader::NextCard CardStreamReader::ReadNext() {
  Descriptor passed;
  QKV_ASSIGN_OR_RETURN(const FrameHeader header, ReadHeader(&passed));
  if (header.type == FrameType::kGivenUp) return ReadReason(header);
  if (header.type == FrameType::kReceived) return Corrupt(wire_.peer() + " answers what nobody has sent");
  if (header.type == FrameType::kEnd) {
    QKV_RETURN_IF_ERROR(Answer());
    return std::shared_ptr<const Card>();
  }
  if (frames_ > limits_.cards || header.bytes > limits_.card_bytes) {
    return Status(StatusCode::kOutOfRange,
                  fmt::format("{} sends card {} of {} bytes; at most {} cards of {} bytes are taken", wire_.peer(),
                              frames_, header.bytes, limits_.cards, limits_.card_bytes));
  }
  total_bytes_ += header.bytes;
  NextCard card = header.type == FrameType::kCard ? ReadCard(header) : TakeSealed(header, std::move(passed));
  if (card && !own_) QKV_RETURN_IF_ERROR((*card)->VerifyDigests());
  return card;
}

CardStreamReader::NextCard CardStreamReader::ReadCard(const FrameHeader& header) {
  QKV_ASSIGN_OR_RETURN(CardPages pages, CardPages::Make(header.bytes));
  QKV_ASSIGN_OR_RETURN(const size_t n, wire_.Read(pages.writable()));
  if (n < header.bytes) {
    return Status(StatusCode::kIo, fmt::format("{} is gone within card {}: {} of {} bytes came", wire_.peer(), frames_,
                                               n, header.bytes));
  }
  return OpenCardIn(std::move(pages));
}

CardStreamReader::NextCard CardStreamReader::TakeSealed(const FrameHeader& header, Descriptor passed) const {
  QKV_ASSIGN_OR_RETURN(const SealedCard shared, SealedCard::Accept(std::move(passed), header.bytes));
  return shared.card();
}

Status CardStreamReader::ReadReason(const FrameHeader& header) {
  std::string reason(header.bytes, '\0');
  QKV_RETURN_IF_ERROR(wire_.Read({reinterpret_cast<uint8_t*>(reason.data()), reason.size()}).status());
  std::replace_if(reason.begin(), reason.end(), [](char c) { return c >= 0 && c < ' '; }, ' ');
  return {StatusCode::kCancelled, fmt::format("{} gave up: {}", wire_.peer(), reason)};
}

// The sender may be gone by now: it has done its part.
Status CardStreamReader::Answer() {
  QKV_ASSIGN_OR_RETURN(const bool more, wire_.HasMore());
  if (more) return Corrupt(wire_.peer() + " sends more after the end");
  if (!wire_.is_socket()) return {};
  static_cast<void>(wire_.Write(EncodeFrame({FrameType::kReceived, 0, 0, total_bytes_})));
  return {};
}

}  // namespace qkvshare
