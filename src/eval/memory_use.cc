#include "eval/memory_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace qkvshare {
namespace {

constexpr std::chrono::milliseconds kInterval{3};

}  // namespace

Result<MemoryUse> ReadMemoryUse(pid_t process) {
  const std::string path =
      process == 0 ? "/proc/self/smaps_rollup" : fmt::format("/proc/{}/smaps_rollup", static_cast<int>(process));
  std::ifstream smaps(path);
  const std::optional<MemoryUse> use = ParseMemoryUse({std::istreambuf_iterator<char>(smaps), {}});
  if (!use) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format(
            "what memory a process has cannot be read from {}: it takes Linux, and a process that is still there",
            path));
  }
  return *use;
}

std::optional<MemoryUse> ParseMemoryUse(const std::string& smaps) {
  size_t resident = 0, anonymous = 0, swapped = 0, proportional = 0, proportional_swapped = 0;
  std::istringstream lines(smaps);
  for (std::string line; std::getline(lines, line);) {
    size_t kib = 0;
    if (std::sscanf(line.c_str(), "Rss: %zu", &kib) == 1) resident = kib * 1024;
    if (std::sscanf(line.c_str(), "Pss: %zu", &kib) == 1) proportional = kib * 1024;
    if (std::sscanf(line.c_str(), "Anonymous: %zu", &kib) == 1) anonymous = kib * 1024;
    if (std::sscanf(line.c_str(), "Swap: %zu", &kib) == 1) swapped = kib * 1024;
    if (std::sscanf(line.c_str(), "SwapPss: %zu", &kib) == 1) proportional_swapped = kib * 1024;
  }
  if (resident == 0) return std::nullopt;
  return MemoryUse{anonymous + swapped, resident - std::min(anonymous, resident), proportional + proportional_swapped};
}

void TrimMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

MemoryPeak::MemoryPeak()
    : thread_([this] {
        while (!done_.load()) {
          Look();
          ++looks_;
          std::this_thread::sleep_for(kInterval);
        }
      }) {}

MemoryPeak::~MemoryPeak() {
  done_.store(true);
  thread_.join();
}

size_t MemoryPeak::private_bytes() {
  Look();
  return most_.load();
}

void MemoryPeak::Look() {
  const Result<MemoryUse> use = ReadMemoryUse();
  if (!use) return;
  size_t most = most_.load();
  while (use->private_bytes > most && !most_.compare_exchange_weak(most, use->private_bytes)) {
  }
}

}  // namespace qkvshare
