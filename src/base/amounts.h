// Amounts as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace qkvshare {

// "1.5 MB", "12.0 kB", "900 B" (decimal).
std::string FormatBytes(uint64_t bytes);
// "1.23 s", "45.6 ms".
std::string FormatUs(int64_t us);

}  // namespace qkvshare
