// Little-endian views of bytes. Every stored format of QKVShare is little-endian, and so is every supported host.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace qkvshare {

static_assert(std::endian::native == std::endian::little, "stored structs are copied as they are");

using ByteSpan = std::span<const uint8_t>;

constexpr size_t AlignUp(size_t n, size_t alignment) { return (n + alignment - 1) / alignment * alignment; }

// Appends trivially copyable values to a buffer.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<uint8_t>* out) : out_(out) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void Put(const T& value) {
    PutBytes(&value, sizeof(T));
  }
  void PutBytes(const void* data, size_t bytes) {
    if (bytes == 0) return;
    const size_t at = out_->size();
    out_->resize(at + bytes);
    std::memcpy(out_->data() + at, data, bytes);
  }
  size_t size() const { return out_->size(); }

 private:
  std::vector<uint8_t>* out_;
};

// Reads values from untrusted bytes: Get and Skip return false, and change nothing, where too few bytes are left.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : bytes_(bytes) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] bool Get(T* value) {
    if (remaining() < sizeof(T)) return false;
    std::memcpy(value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }
  [[nodiscard]] bool Skip(size_t bytes) {
    if (remaining() < bytes) return false;
    at_ += bytes;
    return true;
  }
  size_t offset() const { return at_; }
  size_t remaining() const { return bytes_.size() - at_; }

 private:
  ByteSpan bytes_;
  size_t at_ = 0;
};

}  // namespace qkvshare
