#include "eval/run_folder.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"

namespace qkvshare {
namespace {

constexpr std::string_view kPrefix = "run-";

// Whether a run whose process is gone has left this. This process makes its own anew.
bool IsLeft(const std::string& name) {
  if (!name.starts_with(kPrefix)) return false;
  pid_t process = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, process);
  if (error != std::errc() || stop != end || process <= 0) return false;
  return process == getpid() || (kill(process, 0) != 0 && errno == ESRCH);
}

void RemoveLeft(const std::string& parent) {
  std::error_code ignored;  // what cannot be read or removed stays
  std::vector<std::filesystem::path> left;
  for (std::filesystem::directory_iterator entry(parent, ignored), end; entry != end; entry.increment(ignored)) {
    if (IsLeft(entry->path().filename().string())) left.push_back(entry->path());
  }
  for (const std::filesystem::path& path : left) std::filesystem::remove_all(path, ignored);
}

}  // namespace

Result<std::unique_ptr<RunFolder>> RunFolder::Make(const std::string& parent) {
  RemoveLeft(parent);
  std::string path = parent + "/" + std::string(kPrefix) + std::to_string(getpid());
  QKV_RETURN_IF_ERROR(MakeFolders(path));
  return std::unique_ptr<RunFolder>(new RunFolder(std::move(path)));
}

RunFolder::RunFolder(std::string path) : path_(std::move(path)) {}

RunFolder::~RunFolder() {
  std::error_code ignored;  // it is nobody's any more, so the next run removes it
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace qkvshare
