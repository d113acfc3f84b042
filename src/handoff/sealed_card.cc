#include "handoff/sealed_card.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "handoff/card_pages.h"

namespace qkvshare {
namespace {

constexpr const char* kName = "qkvshare-card";  // as /proc/PID/maps shows it

#ifdef MFD_ALLOW_SEALING

constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;

Status Failed(const std::string& what) {
  const StatusCode code = errno == ENOMEM || errno == ENOSPC ? StatusCode::kOutOfRange : StatusCode::kIo;
  return {code, fmt::format("shared memory: cannot {}: {}", what, std::system_category().message(errno))};
}

Status WriteWhole(int file, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed("write to it");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Result<Descriptor> MakeFile(std::span<const ByteSpan> pieces) {
  Descriptor file(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return Failed("make it");
  for (const ByteSpan piece : pieces) QKV_RETURN_IF_ERROR(WriteWhole(file.get(), piece));
  if (fcntl(file.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) return Failed("seal it");
  return file;
}

Status CheckSeals(int file) {
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals >= 0 && (seals & kSeals) == kSeals) return {};
  return {StatusCode::kCorrupt, "a card's shared memory is not sealed: somebody could change it"};
}

#else

Result<Descriptor> MakeFile(std::span<const ByteSpan>) {
  return Status(StatusCode::kUnsupported, std::string(kName) + ": no sealed memory files on this system; use a file");
}
Status CheckSeals(int) { return {StatusCode::kUnsupported, "no sealed memory files on this system; use a file"}; }

#endif

}  // namespace

Result<SealedCard> SealedCard::Make(std::span<const ByteSpan> pieces) {
  QKV_ASSIGN_OR_RETURN(Descriptor file, MakeFile(pieces));
  size_t bytes = 0;
  for (const ByteSpan piece : pieces) bytes += piece.size();
  return Open(std::move(file), bytes);
}

Result<SealedCard> SealedCard::Accept(Descriptor file, uint64_t bytes) {
  QKV_RETURN_IF_ERROR(CheckSeals(file.get()));
  struct stat info{};
  if (fstat(file.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("a card's shared memory has {} bytes, {} were announced", info.st_size, bytes));
  }
  return Open(std::move(file), bytes);
}

Result<SealedCard> SealedCard::Open(Descriptor file, size_t bytes) {
  QKV_ASSIGN_OR_RETURN(CardPages pages, CardPages::Map(file.get(), bytes));
  QKV_ASSIGN_OR_RETURN(std::shared_ptr<const Card> card, OpenCardIn(std::move(pages)));
  return SealedCard(std::move(file), std::move(card));
}

}  // namespace qkvshare
