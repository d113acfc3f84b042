#include "eval/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <numeric>
#include <thread>

#include "base/parallel.h"
#include "base/stopwatch.h"
#include "qkvshare/status.h"

namespace qkvshare {
namespace {

constexpr size_t kWords = (size_t{512} << 20) / sizeof(uint64_t);  // 512 MiB: many times a last-level cache
constexpr int kRuns = 8;

}  // namespace

double MeasureReadBandwidth(int threads) {
  if (threads <= 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const std::unique_ptr<uint64_t[]> buffer(new (std::nothrow) uint64_t[kWords]);
  if (buffer == nullptr) return 0;
  const size_t part = kWords / static_cast<size_t>(threads);
  std::atomic<uint64_t> sum{0};  // that the compiler cannot leave out
  // Written first, so that there is memory behind it. Additions of whole numbers are vectorized and far faster than
  // memory; fetching ahead by hand was no faster than what the CPU does by itself.
  const auto for_each_part = [&](const auto& work) {
    return ParallelFor(static_cast<size_t>(threads), threads, [&](size_t i) {
      uint64_t* first = buffer.get() + i * part;
      work(first, first + part);
      return Status();
    });
  };
  const auto write = [](uint64_t* first, uint64_t* last) { std::fill(first, last, 1); };
  const auto read = [&](const uint64_t* first, const uint64_t* last) {
    sum.fetch_add(std::accumulate(first, last, uint64_t{0}), std::memory_order_relaxed);
  };
  if (!for_each_part(write).ok()) return 0;
  int64_t best_us = INT64_MAX;
  for (int run = 0; run < kRuns; ++run) {
    Stopwatch watch;
    if (!for_each_part(read).ok()) return 0;
    best_us = std::min(best_us, std::max<int64_t>(watch.LapUs(), 1));
  }
  return static_cast<double>(part * static_cast<size_t>(threads) * sizeof(uint64_t)) * 1e6 /
         static_cast<double>(best_us);
}

}  // namespace qkvshare
