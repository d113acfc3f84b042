#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace qkvshare {

namespace {

// An exception must not leave a thread.
Status Run(const std::function<Status(size_t)>& work, size_t i) {
  try {
    return work(i);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfRange, "out of memory"};
  } catch (const std::exception& error) {
    return {StatusCode::kInternal, error.what()};
  }
}

}  // namespace

Status ParallelFor(size_t count, int threads, const std::function<Status(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  size_t first_failure = count;
  Status status;
  const auto run = [&] {
    while (!failed.load(std::memory_order_relaxed)) {
      const size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) return;
      Status result = Run(work, i);
      if (result.ok()) continue;
      failed.store(true, std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
      if (i < first_failure) {
        first_failure = i;
        status = std::move(result);
      }
    }
  };
  const size_t helpers = std::min(count, static_cast<size_t>(std::max(threads, 1))) - (count > 0 ? 1 : 0);
  std::vector<std::thread> pool;
  pool.reserve(helpers);
  try {
    for (size_t i = 0; i < helpers; ++i) pool.emplace_back(run);
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
    // No more threads to be had: those that run do the work.
  }
  run();
  for (std::thread& thread : pool) thread.join();
  return status;
}

}  // namespace qkvshare
