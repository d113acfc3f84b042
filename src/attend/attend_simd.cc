// The kernels for AVX2, AVX-512 and NEON: one source, which Highway's foreach_target.h includes once for each.
#include "attend/attend_simd.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "quant/tile.h"

// Only what the tables below have. AES is not used, and not all CPUs with NEON have it.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attend/attend_simd.cc"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON

#include "attend/attend_dots_inl.h"
#include "attend/attend_exact_inl.h"
#include "attend/attend_keys_inl.h"
#include "attend/attend_softmax_inl.h"
#include "attend/attend_values_inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkvshare {
namespace HWY_NAMESPACE {
namespace {

template <class Dots>
constexpr AttendKernels TableOf(const char* name) {
  return {name,    QuantizeQuery,         KeyDots<Dots>,   ExactKeyDots,
          Softmax, QuantizeWeights<Dots>, ValueSums<Dots>, ExactValueSums};
}

}  // namespace

extern const AttendKernels kAttendTable;
#if HWY_TARGET == HWY_AVX3
extern const AttendKernels kVnniAttendTable;
const AttendKernels kVnniAttendTable = TableOf<Fours>("avx512");
const AttendKernels kAttendTable = TableOf<Pairs>("avx512");
#elif HWY_TARGET == HWY_AVX2
const AttendKernels kAttendTable = TableOf<Pairs>("avx2");
#elif defined(__ARM_FEATURE_DOTPROD)
const AttendKernels kAttendTable = TableOf<Fours>("neon");
#else
const AttendKernels kAttendTable = TableOf<Pairs>("neon");
#endif

}  // namespace HWY_NAMESPACE
}  // namespace qkvshare
HWY_AFTER_NAMESPACE();

#endif

#if HWY_ONCE
namespace qkvshare {

std::vector<const AttendKernels*> SimdAttendKernels() {
  std::vector<const AttendKernels*> sets;
#if HWY_ARCH_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#if HWY_TARGETS & HWY_AVX3
  if (avx512 && __builtin_cpu_supports("avx512vnni")) sets.push_back(&N_AVX3::kVnniAttendTable);
  if (avx512) sets.push_back(&N_AVX3::kAttendTable);
#endif
#if HWY_TARGETS & HWY_AVX2
  if (avx2) sets.push_back(&N_AVX2::kAttendTable);
#endif
#elif HWY_TARGETS & HWY_NEON
  sets.push_back(&N_NEON::kAttendTable);
#endif
  return sets;
}

}  // namespace qkvshare
#endif
