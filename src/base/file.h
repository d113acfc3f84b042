// Files: read-only mappings, whole reads with a limit, and atomic writes. Errors name the path and what to do.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "qkvshare/status.h"

namespace qkvshare {

// A whole file mapped read-only; unmapped on destruction. An empty file maps to an empty span.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  ByteSpan bytes() const { return {data_, size_}; }
  // Whether the file belongs to this process's user.
  bool is_own() const { return is_own_; }

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  bool is_own_ = false;
};

// Reads a file (or standard input for "-"). kOutOfRange past limit_bytes.
Result<std::string> ReadText(const std::string& path, size_t limit_bytes);

// A file that is written piece by piece to a temporary one beside it, and renamed over `path` when it is complete: a
// reader sees the old file or the whole new one. Without Commit nothing is left. Mode 0600.
class AtomicFile {
 public:
  // kInvalidArgument where something else than a regular file is at `path`; kNotFound, kIo.
  static Result<AtomicFile> Create(const std::string& path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  Status Write(ByteSpan bytes);
  // Syncs and renames. Nothing may be written afterwards.
  Status Commit();

 private:
  AtomicFile() = default;
  std::string path_, temporary_;  // temporary_ is empty where there is none to remove
  int fd_ = -1;
};

// The pieces one after the other, as an AtomicFile.
Status WriteFileAtomic(const std::string& path, const std::vector<ByteSpan>& pieces);

// kInvalidArgument where something else than a regular file is at `path`: a rename would destroy it.
Status CheckReplaceable(const std::string& path);

// kInvalidArgument where a file that is not empty is at `path` and does not start with `magic`; what: "a card".
Status CheckKind(const std::string& path, std::string_view magic, const char* what);

// Creates a folder and its parents, mode 0700.
Status MakeFolders(const std::string& path);

// $QKV_CACHE, else $XDG_CACHE_HOME/qkvshare, else $HOME/.cache/qkvshare. Not created.
std::string CacheFolder();

}  // namespace qkvshare
