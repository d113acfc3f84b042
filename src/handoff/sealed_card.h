// A card in shared memory: a memory file that nobody can change any more, which processes map. Linux (memfd_create).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "card/card.h"
#include "handoff/descriptor.h"
#include "qkvshare/status.h"

namespace qkvshare {

class SealedCard {
 public:
  // Copies the pieces of a card, one after the other, into a new memory file, seals it and opens the card there. Errors
  // as Card::FromSpan; kOutOfRange: no memory for it; kUnsupported: not on this system.
  static Result<SealedCard> Make(std::span<const ByteSpan> pieces);
  // Takes a memory file of just so many bytes that another process made. kCorrupt: another length, or it is not sealed
  // against writing, shrinking and growing; else as Card::FromSpan.
  static Result<SealedCard> Accept(Descriptor file, uint64_t bytes);

  // It keeps the pages, whatever becomes of this object.
  const std::shared_ptr<const Card>& card() const { return card_; }
  // The memory file, to be passed on.
  int file() const { return file_.get(); }

 private:
  static Result<SealedCard> Open(Descriptor file, size_t bytes);
  SealedCard(Descriptor file, std::shared_ptr<const Card> card) : file_(std::move(file)), card_(std::move(card)) {}

  Descriptor file_;
  std::shared_ptr<const Card> card_;
};

}  // namespace qkvshare
