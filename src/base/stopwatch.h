// Measures one stage after the other.
#pragma once

#include <chrono>
#include <cstdint>

namespace qkvshare {

class Stopwatch {
 public:
  // Microseconds since construction or the last lap.
  int64_t LapUs() {
    const auto now = std::chrono::steady_clock::now();
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now - start_).count();
    start_ = now;
    return us;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace qkvshare
