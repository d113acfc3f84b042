// The sets of kernels_simd.cc.
#pragma once

#include <vector>

#include "quant/kernels.h"

namespace qkvshare {

// Those that this CPU has, fastest first.
std::vector<const Kernels*> SimdKernels();

}  // namespace qkvshare
