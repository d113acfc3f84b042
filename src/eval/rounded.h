// Numbers of results are kept as text, with so many digits.
#pragma once

#include <fmt/format.h>

#include <cstdlib>

namespace qkvshare {

inline double Rounded(double x, int digits = 6) {
  return std::strtod(fmt::format("{:.{}g}", x, digits).c_str(), nullptr);
}

}  // namespace qkvshare
