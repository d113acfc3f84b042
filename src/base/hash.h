// Checksums and digests: XXH3-64 finds accidents fast, BLAKE2b-256 identifies content, SHA-256 checks pinned downloads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.h"

namespace qkvshare {

using Digest = std::array<uint8_t, 32>;

uint64_t Xxh3(ByteSpan bytes);
Digest Blake2b(ByteSpan bytes);

// BLAKE2b-256 over what is fed in pieces.
class Blake2bHasher {
 public:
  Blake2bHasher();
  ~Blake2bHasher();
  Blake2bHasher(Blake2bHasher&&) noexcept;
  Blake2bHasher& operator=(Blake2bHasher&&) noexcept;
  Blake2bHasher(const Blake2bHasher&) = delete;
  Blake2bHasher& operator=(const Blake2bHasher&) = delete;

  void Update(ByteSpan bytes);
  // Adds the length first, so that neighbouring strings cannot run together.
  void UpdateString(const std::string& text);
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void UpdateValue(const T& value) {
    Update({reinterpret_cast<const uint8_t*>(&value), sizeof(T)});
  }
  // The hasher is used up afterwards.
  Digest Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// SHA-256 over what is fed in pieces.
class Sha256Hasher {
 public:
  Sha256Hasher();
  ~Sha256Hasher();
  Sha256Hasher(const Sha256Hasher&) = delete;
  Sha256Hasher& operator=(const Sha256Hasher&) = delete;
  void Update(ByteSpan bytes);
  Digest Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Lower-case hexadecimal.
std::string ToHex(ByteSpan bytes);
// Only what ToHex makes of a digest.
std::optional<Digest> DigestFromHex(const std::string& text);

}  // namespace qkvshare
