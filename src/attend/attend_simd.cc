#include "attend/attend_simd.h"

namespace qkvshare {

std::vector<const AttendKernels*> SimdAttendKernels() { return {}; }

}  // namespace qkvshare
