// NumPy's .npz: a zip archive of .npy arrays. Written here stored, not compressed: KV rows do not compress.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "qkvshare/status.h"

namespace qkvshare {

// CRC-32 as zip, gzip and PNG use it.
uint32_t Crc32(ByteSpan bytes);

// Writes one array after the other; the file appears, with mode 0600, when Finish succeeds.
// Source: the zip application note (APPNOTE.TXT 4.3) and NumPy's format document (version 1.0).
class NpzWriter {
 public:
  // A file without zip64 is shorter than this.
  static constexpr uint64_t kMaxBytes = 0xFFFFFFFF;
  // Of an array besides its data, at most; names up to 64 bytes.
  static constexpr uint64_t kOverheadBytes = 512;

  static Result<NpzWriter> Create(const std::string& path);

  // dtype as NumPy writes it ("<f2", "|u1"); data in C order. kInvalidArgument where data has not the bytes of the
  // shape; kOutOfRange, with nothing written, where the file would grow past kMaxBytes.
  Status Add(const std::string& name, const std::string& dtype, const std::vector<uint64_t>& shape, ByteSpan data);
  Status Finish();

 private:
  struct Entry {
    std::string name;
    uint32_t crc = 0;
    uint32_t bytes = 0;
    uint32_t offset = 0;
  };
  explicit NpzWriter(AtomicFile file) : file_(std::move(file)) {}
  Status Write(ByteSpan bytes);

  AtomicFile file_;
  uint64_t offset_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace qkvshare
