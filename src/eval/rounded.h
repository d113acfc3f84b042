// Numbers of results are kept as text, with six digits.
#pragma once

#include <fmt/format.h>

#include <cstdlib>

namespace qkvshare {

inline double Rounded(double x) { return std::strtod(fmt::format("{:.6g}", x).c_str(), nullptr); }

}  // namespace qkvshare
