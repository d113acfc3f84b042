#include "eval/memory_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
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
  size_t resident = 0, anonymous = 0, proportional = 0;
  for (std::string line; std::getline(smaps, line);) {
    size_t kib = 0;
    if (std::sscanf(line.c_str(), "Rss: %zu", &kib) == 1) resident = kib * 1024;
    if (std::sscanf(line.c_str(), "Pss: %zu", &kib) == 1) proportional = kib * 1024;
    if (std::sscanf(line.c_str(), "Anonymous: %zu", &kib) == 1) anonymous = kib * 1024;
  }
  if (resident == 0) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format(
            "what memory a process has cannot be read from {}: it takes Linux, and a process that is still there",
            path));
  }
  return MemoryUse{anonymous, resident - std::min(anonymous, resident), proportional};
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
