// What a receiver makes of arbitrary bytes that come through a pipe: once as they are, once with the checksums of its
// frames made right.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "handoff/card_stream.h"

namespace {

using namespace qkvshare;  // NOLINT(google-build-using-namespace)

constexpr size_t kMaxBytes = 60'000;  // that a pipe takes without anybody who reads
constexpr size_t kBytesAt = 16, kTotalAt = 24, kChecksumAt = 40;

void Require(bool condition) {
  if (!condition) std::abort();
}

void Receive(ByteSpan bytes) {
  int ends[2];
  Require(pipe2(ends, O_CLOEXEC) == 0);
  Require(write(ends[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  close(ends[1]);
  CardStreamReader reader(*Wire::Take(Descriptor(ends[0]), "the sender", {}), /*own=*/false);
  size_t taken = 0;
  for (;;) {
    const Result<std::shared_ptr<const Card>> card = reader.Next();
    if (!card) {
      Require(!card.status().message().empty());
      Require(reader.Next().status().message() == card.status().message());
      return;
    }
    if (*card == nullptr) return;
    taken += (*card)->file_bytes();
    Require(taken <= bytes.size() && (*card)->VerifyDigests().ok());
  }
}

// A frame begins at the start, and where the payload of the one before ends.
std::vector<uint8_t> WithChecksums(std::vector<uint8_t> bytes) {
  uint64_t total = 0;
  for (size_t at = 0; at + kFrameHeaderBytes <= bytes.size();) {
    uint8_t* frame = bytes.data() + at;
    uint64_t payload = 0;
    std::memcpy(&payload, frame + kBytesAt, sizeof payload);
    total += frame[6] <= 2 ? payload : 0;
    std::memcpy(frame + kTotalAt, &total, sizeof total);
    const uint64_t checksum = Xxh3({frame, kChecksumAt});
    std::memcpy(frame + kChecksumAt, &checksum, sizeof checksum);
    if (payload > bytes.size() - at - kFrameHeaderBytes) break;
    at += kFrameHeaderBytes + payload;
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > kMaxBytes) return 0;
  Receive({data, size});
  Receive(WithChecksums({data, data + size}));
  return 0;
}
