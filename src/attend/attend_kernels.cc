#include "attend/attend_kernels.h"

#include <algorithm>
#include <string_view>

#include "attend/attend_simd.h"

namespace qkvshare {

const std::vector<const AttendKernels*>& AvailableAttendKernels() {
  static const std::vector<const AttendKernels*> sets = [] {
    std::vector<const AttendKernels*> all = SimdAttendKernels();
    all.push_back(&ScalarAttendKernels());
    return all;
  }();
  return sets;
}

Result<const AttendKernels*> SelectAttendKernels() {
  Result<const Kernels*> rows = SelectKernels();
  QKV_RETURN_IF_ERROR(rows.status());
  const std::string_view name = (*rows)->name;
  for (const AttendKernels* kernels : AvailableAttendKernels()) {
    if (name == kernels->name) return kernels;
  }
  return &ScalarAttendKernels();
}

}  // namespace qkvshare
