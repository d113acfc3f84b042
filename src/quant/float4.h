// Four floats at a time, by the vector extensions that GCC and clang share: each operation is that of the four scalars,
// so any CPU gives the same bits, and compiles to what the baseline instruction set has.
#pragma once

#include <cstring>

namespace qkvshare {

using Float4 = float __attribute__((vector_size(16)));

// x [4]: of any alignment.
inline Float4 Load4(const float* x) {
  Float4 v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

inline void Store4(Float4 v, float* x) { std::memcpy(x, &v, sizeof v); }

}  // namespace qkvshare
