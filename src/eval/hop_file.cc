#include "eval/hop_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/file.h"

namespace qkvshare {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 32;

Status IoError(const std::string& path, const char* what) {
  return {StatusCode::kIo, fmt::format("{}: cannot {}: {}", path, what, std::system_category().message(errno))};
}

}  // namespace

Result<HopFile> HopFile::Open(const std::string& path, const nlohmann::ordered_json& header,
                              std::span<const HopRecord> expected, std::span<const size_t> group_lines) {
  QKV_RETURN_IF_ERROR(CheckReplaceable(path));
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) {
    if (errno == ENOENT) return Status(StatusCode::kNotFound, path + ": there is no such folder");
    return IoError(path, "open it");
  }
  HopFile file(path, fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return Status(StatusCode::kInvalidArgument, path + ": another run is writing to it; choose another file");
  }
  QKV_ASSIGN_OR_RETURN(const std::string content, ReadText(path, kMaxBytes));
  QKV_RETURN_IF_ERROR(file.ReadBack(content, header.dump(), expected, group_lines));
  return file;
}

HopFile::~HopFile() {
  if (fd_ >= 0) close(fd_);
}

HopFile::HopFile(HopFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), records_(std::move(other.records_)) {}

Status HopFile::CheckHeader(const std::string& line, const std::string& header) const {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {}; choose another file, or remove it", path_, why));
  };
  const auto theirs = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!theirs.is_object() || !theirs.contains("qkvshare_hops")) return refuse("is no file of hop results");
  const auto ours = nlohmann::ordered_json::parse(header);
  for (const auto& [key, value] : ours.items()) {
    if (theirs.contains(key) && theirs[key] == value) continue;
    return refuse(fmt::format("is of another run, whose \"{}\" differs", key));
  }
  return theirs.size() == ours.size() ? Status() : refuse("says more of its run than this version knows");
}

Status HopFile::ReadBack(const std::string& content, const std::string& header, std::span<const HopRecord> expected,
                         std::span<const size_t> group_lines) {
  // A run that was stopped at its first write has left less than a line; anything else may be somebody's.
  const std::string first = header + "\n";
  if (content.size() < first.size() && first.starts_with(content)) {
    if (ftruncate(fd_, 0) != 0) return IoError(path_, "shorten it");
    return Write(first);
  }
  size_t at = std::min(content.find('\n'), content.size() - 1);
  QKV_RETURN_IF_ERROR(CheckHeader(content.substr(0, at), header));
  size_t whole = ++at;  // bytes up to the end of the last whole group
  size_t group = 0;
  for (std::vector<HopRecord> read; at < content.size();) {
    const size_t end = content.find('\n', at);
    if (end == std::string::npos) break;  // half a line
    const size_t line = records_.size() + read.size();
    const Result<HopRecord> record = ParseHopLine(content.substr(at, end - at));
    if (!record || line >= expected.size() || record->chain != expected[line].chain ||
        record->hop != expected[line].hop) {
      return {StatusCode::kCorrupt, fmt::format("{}: line {} is {}; remove it and what follows, or the file", path_,
                                                line + 2, record ? "not the one that comes next" : "damaged")};
    }
    read.push_back(*record);
    at = end + 1;
    if (read.size() < group_lines[group]) continue;
    records_.insert(records_.end(), read.begin(), read.end());
    read.clear();
    ++group;
    whole = at;
  }
  if (whole == content.size()) return {};
  return ftruncate(fd_, static_cast<off_t>(whole)) == 0 ? Status() : IoError(path_, "shorten it");
}

Status HopFile::Append(std::span<const HopRecord> group) {
  std::string text;
  for (const HopRecord& record : group) text += HopLine(record) + "\n";
  return Write(text);
}

Status HopFile::Write(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return IoError(path_, "write to it");
    done += static_cast<size_t>(n);
  }
  return fsync(fd_) == 0 ? Status() : IoError(path_, "write to it");
}

}  // namespace qkvshare
