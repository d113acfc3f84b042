#include "base/hash.h"

#include <sodium.h>
#include <xxhash.h>

#include <charconv>

namespace qkvshare {
namespace {

// libsodium picks its implementation for this CPU here; before, it takes the portable one. Thread-safe.
void InitSodium() {
  static const int result = sodium_init();
  (void)result;  // a failure leaves the portable implementation
}

}  // namespace

uint64_t Xxh3(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Digest Blake2b(ByteSpan bytes) {
  InitSodium();
  Digest digest;
  crypto_generichash(digest.data(), digest.size(), bytes.data(), bytes.size(), nullptr, 0);
  return digest;
}

struct Blake2bHasher::State {
  crypto_generichash_state hash;
};

Blake2bHasher::Blake2bHasher() : state_(std::make_unique<State>()) {
  InitSodium();
  crypto_generichash_init(&state_->hash, nullptr, 0, std::tuple_size_v<Digest>);
}
Blake2bHasher::~Blake2bHasher() = default;
Blake2bHasher::Blake2bHasher(Blake2bHasher&&) noexcept = default;
Blake2bHasher& Blake2bHasher::operator=(Blake2bHasher&&) noexcept = default;

void Blake2bHasher::Update(ByteSpan bytes) { crypto_generichash_update(&state_->hash, bytes.data(), bytes.size()); }

void Blake2bHasher::UpdateString(const std::string& text) {
  UpdateValue(static_cast<uint64_t>(text.size()));
  Update({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

Digest Blake2bHasher::Finish() {
  Digest digest;
  crypto_generichash_final(&state_->hash, digest.data(), digest.size());
  return digest;
}

struct Sha256Hasher::State {
  crypto_hash_sha256_state hash;
};

Sha256Hasher::Sha256Hasher() : state_(std::make_unique<State>()) {
  InitSodium();
  crypto_hash_sha256_init(&state_->hash);
}
Sha256Hasher::~Sha256Hasher() = default;

void Sha256Hasher::Update(ByteSpan bytes) { crypto_hash_sha256_update(&state_->hash, bytes.data(), bytes.size()); }

Digest Sha256Hasher::Finish() {
  Digest digest;
  crypto_hash_sha256_final(&state_->hash, digest.data());
  return digest;
}

std::string ToHex(ByteSpan bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

std::optional<Digest> DigestFromHex(const std::string& text) {
  Digest digest;
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    const char* const end = text.data() + 2 * (i + 1);
    if (std::from_chars(end - 2, end, digest[i], 16).ptr != end) return std::nullopt;
  }
  if (ToHex(digest) != text) return std::nullopt;  // capitals
  return digest;
}

}  // namespace qkvshare
