// Seeds of policy `random` in evaluations: with one permutation for all that they measure, an interval over prompts
// would lack what the permutation does.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace qkvshare {

// The first 8 bytes, little-endian, of BLAKE2b-256 over the arm's seed (8 bytes, little-endian) and the names of what
// is packed (each a length and its bytes): a prompt and a continuation, or a chain and a hop.
uint64_t PolicySeedFor(uint64_t seed, std::span<const std::string> names);

}  // namespace qkvshare
