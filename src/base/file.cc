#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace qkvshare {
namespace {

// Closes on every way out.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ > STDIN_FILENO) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

Status ErrnoStatus(const std::string& what, const std::string& path, int error) {
  const StatusCode code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound : StatusCode::kIo;
  return {code, what + " " + path + ": " + std::strerror(error)};
}

Status WriteAll(int fd, ByteSpan bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("cannot write", path, errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

// A link stays a link: what it names is written, whether that is there yet or not.
std::string FollowLinks(const std::string& name) {
  constexpr int kMostLinks = 16;
  std::filesystem::path path = name;
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i) {
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  }
  return path.string();
}

void SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const FileDescriptor fd(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.valid()) fsync(fd.get());  // best effort: some file systems refuse it on folders
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // Not blocking: a pipe without a writer must not hang.
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus("cannot open", path, errno);
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus("cannot stat", path, errno);
  if (!S_ISREG(info.st_mode)) return Status(StatusCode::kInvalidArgument, path + " is not a regular file");
  MappedFile file;
  file.is_own_ = info.st_uid == geteuid();
  if (info.st_size == 0) return file;
  const auto size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus("cannot map", path, errno);
  file.data_ = static_cast<const uint8_t*>(data);
  file.size_ = size;
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), is_own_(other.is_own_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(is_own_, other.is_own_);
  return *this;
}

Result<std::string> ReadText(const std::string& path, size_t limit_bytes) {
  const FileDescriptor fd(path == "-" ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("cannot open", path, errno);
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("cannot read", path, errno);
    if (n == 0) return text;
    if (text.size() + static_cast<size_t>(n) > limit_bytes) {
      return Status(StatusCode::kOutOfRange,
                    path + " is longer than the limit of " + std::to_string(limit_bytes) + " bytes");
    }
    text.append(buffer, static_cast<size_t>(n));
  }
}

Status CheckReplaceable(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return {};
  return {StatusCode::kInvalidArgument,
          "cannot write " + path + ": it is there and is not a regular file; choose another name"};
}

Status CheckKind(const std::string& path, std::string_view magic, const char* what) {
  const Result<MappedFile> there = MappedFile::Open(path);
  if (!there || there->bytes().empty()) return {};
  const ByteSpan bytes = there->bytes();
  if (bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0) return {};
  return {StatusCode::kInvalidArgument, path + " is there and is not " + what + "; remove it or choose another name"};
}

Result<AtomicFile> AtomicFile::Create(const std::string& path) {
  QKV_RETURN_IF_ERROR(CheckReplaceable(path));
  AtomicFile file;
  file.path_ = FollowLinks(path);
  std::string temporary = file.path_ + ".XXXXXX";
  file.fd_ = mkostemp(temporary.data(), O_CLOEXEC);  // created with mode 0600
  if (file.fd_ < 0) return ErrnoStatus("cannot create a file beside", file.path_, errno);
  file.temporary_ = std::move(temporary);
  return file;
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  return *this;
}

Status AtomicFile::Write(ByteSpan bytes) { return WriteAll(fd_, bytes, path_); }

Status AtomicFile::Commit() {
  if (fsync(fd_) != 0) return ErrnoStatus("cannot sync", path_, errno);
  // The close may report what a write did not.
  if (close(std::exchange(fd_, -1)) != 0) return ErrnoStatus("cannot close", path_, errno);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return ErrnoStatus("cannot rename to", path_, errno);
  temporary_.clear();
  SyncFolderOf(path_);
  return {};
}

Status WriteFileAtomic(const std::string& path, const std::vector<ByteSpan>& pieces) {
  QKV_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  for (const ByteSpan piece : pieces) QKV_RETURN_IF_ERROR(file.Write(piece));
  return file.Commit();
}

Status MakeFolders(const std::string& path) {
  std::filesystem::path made;
  for (const auto& part : std::filesystem::path(path)) {
    made /= part;
    if (mkdir(made.c_str(), 0700) == 0) continue;
    const int error = errno;
    std::error_code ignored;  // what exists must be a folder; asking must not throw
    if (!std::filesystem::is_directory(made, ignored)) return ErrnoStatus("cannot create folder", made.string(), error);
  }
  return {};
}

std::string CacheFolder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here sets the environment
    return value == nullptr ? "" : value;
  };
  if (const std::string folder = variable("QKV_CACHE"); !folder.empty()) return folder;
  if (const std::string folder = variable("XDG_CACHE_HOME"); !folder.empty()) return folder + "/qkvshare";
  return variable("HOME") + "/.cache/qkvshare";
}

}  // namespace qkvshare
