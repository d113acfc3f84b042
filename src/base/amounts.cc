#include "base/amounts.h"

#include <fmt/format.h>

namespace qkvshare {

std::string FormatBytes(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1000) return fmt::format("{} B", bytes);
  if (bytes < 1000 * 1000) return fmt::format("{:.1f} kB", value / 1e3);
  if (bytes < 1000ULL * 1000 * 1000) return fmt::format("{:.1f} MB", value / 1e6);
  return fmt::format("{:.2f} GB", value / 1e9);
}

std::string FormatUs(int64_t us) {
  const auto value = static_cast<double>(us);
  return us < 1000 * 1000 ? fmt::format("{:.1f} ms", value / 1e3) : fmt::format("{:.2f} s", value / 1e6);
}

}  // namespace qkvshare
