// The sets of attend_simd.cc.
#pragma once

#include <vector>

#include "attend/attend_kernels.h"

namespace qkvshare {

// Those that this CPU has, fastest first.
std::vector<const AttendKernels*> SimdAttendKernels();

}  // namespace qkvshare
