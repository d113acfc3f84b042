#include "eval/policy_seed.h"

#include <cstring>

#include "base/hash.h"

namespace qkvshare {

uint64_t PolicySeedFor(uint64_t seed, std::span<const std::string> names) {
  Blake2bHasher hasher;
  hasher.UpdateValue(seed);
  for (const std::string& name : names) hasher.UpdateString(name);
  const Digest digest = hasher.Finish();
  uint64_t own = 0;
  std::memcpy(&own, digest.data(), sizeof(own));
  return own;
}

}  // namespace qkvshare
