#include "handoff/card_pages.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace qkvshare {
namespace {

std::string ErrorText() { return std::system_category().message(errno); }

struct CardInPages {
  CardPages pages;
  Card card;
};

}  // namespace

Result<CardPages> CardPages::Make(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    return Status(StatusCode::kOutOfRange, fmt::format("no memory for a card of {} bytes: {}", bytes, ErrorText()));
#ifdef MADV_HUGEPAGE
  madvise(data, bytes, MADV_HUGEPAGE);  // fewer faults; best effort
#endif
  return CardPages(data, bytes);
}

Result<CardPages> CardPages::Map(int file, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return Status(StatusCode::kIo, "cannot map a card's shared memory: " + ErrorText());
  return CardPages(data, bytes);
}

CardPages::~CardPages() {
  if (data_ != nullptr) munmap(data_, size_);
}

CardPages::CardPages(CardPages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}

Result<std::shared_ptr<const Card>> OpenCardIn(CardPages pages) {
  if (mprotect(pages.writable().data(), pages.bytes().size(), PROT_READ) != 0)
    return Status(StatusCode::kIo, "cannot protect a card's memory: " + ErrorText());
  QKV_ASSIGN_OR_RETURN(Card card, Card::FromSpan(pages.bytes()));
  const auto held = std::make_shared<const CardInPages>(CardInPages{std::move(pages), std::move(card)});
  return std::shared_ptr<const Card>(held, &held->card);
}

}  // namespace qkvshare
