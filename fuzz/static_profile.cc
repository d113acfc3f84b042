// Reads arbitrary bytes as a static profile: as they are, and with their length and checksum made right. What parses
// must be what its parts are written as.
#include "card/static_profile.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using namespace qkvshare;  // NOLINT(google-build-using-namespace)

void Require(bool condition) {
  if (!condition) std::abort();
}

void ReadAndWrite(const std::vector<uint8_t>& bytes) {
  Result<StaticProfile> profile = ParseStaticProfile(bytes);
  if (!profile) {
    Require(!profile.status().message().empty());
    return;
  }
  const Digest id = profile->id;
  const Result<std::vector<uint8_t>> again = StaticProfileBytes(&*profile);
  Require(again && *again == bytes && profile->id == id);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> bytes(data, data + size);
  bytes.shrink_to_fit();
  ReadAndWrite(bytes);
  if (size < 128) return 0;
  const uint64_t length = size;
  std::memcpy(bytes.data() + 16, &length, sizeof length);
  std::vector<uint8_t> covered(bytes.begin(), bytes.begin() + 120);
  covered.insert(covered.end(), bytes.begin() + 128, bytes.end());
  const uint64_t checksum = Xxh3(covered);
  std::memcpy(bytes.data() + 120, &checksum, sizeof checksum);
  ReadAndWrite(bytes);
  return 0;
}
