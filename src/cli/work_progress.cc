#include "cli/work_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace qkvshare::cli {
namespace {

std::string TimeLeft(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s left", seconds);
  const double minutes = seconds / 60;
  return minutes < 120 ? fmt::format("{:.0f} min left", minutes) : fmt::format("{:.0f} h left", minutes / 60);
}

}  // namespace

WorkProgress::WorkProgress(std::string label) : line_(std::move(label)) {}

void WorkProgress::Show(size_t done, size_t all, const std::string& what) {
  if (!first_) {
    first_ = done;
    watch_.LapUs();
  }
  worked_us_ += watch_.LapUs();
  if (done <= *first_) {
    line_.Note(what);
    return;
  }
  const double left = static_cast<double>(worked_us_) / static_cast<double>(done - *first_) *
                      static_cast<double>(all - std::min(done, all)) / 1e6;
  line_.Note(what + ", " + TimeLeft(left));
}

}  // namespace qkvshare::cli
