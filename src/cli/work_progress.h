// How far a long work is, and how long the rest of it will take if it goes on as it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/stopwatch.h"
#include "cli/terminal.h"

namespace qkvshare::cli {

class WorkProgress {
 public:
  explicit WorkProgress(std::string label);

  // done: of `all`, also what was there before the first call. what: shown before the time that is left.
  void Show(size_t done, size_t all, const std::string& what);

 private:
  std::optional<size_t> first_;  // done when it was first called
  int64_t worked_us_ = 0;
  Stopwatch watch_;
  ProgressLine line_;
};

}  // namespace qkvshare::cli
