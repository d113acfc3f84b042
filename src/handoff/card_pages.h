// Pages of memory that a received card lies in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "card/card.h"
#include "qkvshare/status.h"

namespace qkvshare {

class CardPages {
 public:
  // New memory, which is taken as it is written. bytes: at least 1. kOutOfRange: there is not as much.
  static Result<CardPages> Make(size_t bytes);
  // A file's first bytes, to be read; the descriptor stays the caller's. kIo.
  static Result<CardPages> Map(int file, size_t bytes);
  ~CardPages();
  CardPages(CardPages&& other) noexcept;
  CardPages& operator=(CardPages&&) = delete;
  CardPages(const CardPages&) = delete;
  CardPages& operator=(const CardPages&) = delete;

  ByteSpan bytes() const { return {data_, size_}; }
  // Of new memory.
  std::span<uint8_t> writable() { return {data_, size_}; }

 private:
  CardPages(void* data, size_t size) : data_(static_cast<uint8_t*>(data)), size_(size) {}
  uint8_t* data_;
  size_t size_;
};

// The card there, which keeps the pages. They are read-only from here on. Errors as Card::FromSpan.
Result<std::shared_ptr<const Card>> OpenCardIn(CardPages pages);

}  // namespace qkvshare
