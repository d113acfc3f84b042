// Memory of a process, as Linux tells it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "qkvshare/status.h"

namespace qkvshare {

// In bytes. Pages of mapped files that nobody has touched yet, or that the system has taken back, do not count.
struct MemoryUse {
  size_t private_bytes = 0;  // that belong to no file, swapped ones too: the process has them for itself
  size_t shared_bytes = 0;   // of mapped files: one copy serves all processes that map them
  // All of it, each page divided by the number of processes that have it.
  size_t proportional_bytes = 0;
};

// From smaps_rollup of a process of the same user; 0: this one. kUnsupported: the system does not tell.
Result<MemoryUse> ReadMemoryUse(pid_t process = 0);

// The same from the text of such a file. Nothing where it has no resident memory.
std::optional<MemoryUse> ParseMemoryUse(const std::string& smaps);

// Gives back what the allocator keeps of what was freed, which would pass for memory in use.
void TrimMemory();

// Watches this process from a thread of its own, and keeps the most that it sees at a time.
class MemoryPeak {
 public:
  MemoryPeak();
  ~MemoryPeak();
  MemoryPeak(const MemoryPeak&) = delete;
  MemoryPeak& operator=(const MemoryPeak&) = delete;

  // The most of private_bytes so far, this moment included. It is looked at some hundred times a second.
  size_t private_bytes();
  // How often the thread has looked.
  size_t looks() const { return looks_.load(); }

 private:
  void Look();

  std::atomic<size_t> most_{0};
  std::atomic<size_t> looks_{0};
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace qkvshare
