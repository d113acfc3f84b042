// Rounding in a metric for AVX2, AVX-512 and NEON: one source, which Highway's foreach_target.h includes once for each.
#include <algorithm>
#include <array>

#include "quant/error_metric.h"
#include "quant/kernels.h"
#include "quant/kernels_common.h"
#include "quant/tile.h"

// As in kernels_simd.cc, whose tables these go into.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/round_tile_simd.cc"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON

HWY_BEFORE_NAMESPACE();
namespace qkvshare {
namespace HWY_NAMESPACE {

void RoundTileInMetric(const ErrorMetric& metric, const float* x, size_t rows, int bits, uint8_t* codes,
                       RowScale* scales, float* costs);

namespace {

namespace hn = hwy::HWY_NAMESPACE;

// 16 floats, in one vector or several.
struct Lanes {
  using D = hn::CappedTag<float, 16>;
  static constexpr size_t kN = 16 / hn::MaxLanes(D());
  hn::Vec<D> part[kN];

  HWY_INLINE Lanes() {}  // a constructor that nobody wrote would be of no target

  static HWY_INLINE Lanes Load(const float* x) {
    Lanes v;
    for (size_t i = 0; i < kN; ++i) v.part[i] = hn::Load(D(), x + i * hn::MaxLanes(D()));
    return v;
  }
  static HWY_INLINE Lanes All(float x) {
    Lanes v;
    for (size_t i = 0; i < kN; ++i) v.part[i] = hn::Set(D(), x);
    return v;
  }
  HWY_INLINE void Store(float* x) const {
    for (size_t i = 0; i < kN; ++i) hn::Store(part[i], D(), x + i * hn::MaxLanes(D()));
  }
};

HWY_INLINE Lanes operator+(Lanes a, Lanes b) {
  for (size_t i = 0; i < Lanes::kN; ++i) a.part[i] = hn::Add(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE Lanes operator-(Lanes a, Lanes b) {
  for (size_t i = 0; i < Lanes::kN; ++i) a.part[i] = hn::Sub(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE Lanes operator*(Lanes a, Lanes b) {
  for (size_t i = 0; i < Lanes::kN; ++i) a.part[i] = hn::Mul(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE Lanes operator/(Lanes a, Lanes b) {
  for (size_t i = 0; i < Lanes::kN; ++i) a.part[i] = hn::Div(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE Lanes Greater(Lanes a, Lanes b, Lanes yes, Lanes no) {
  for (size_t i = 0; i < Lanes::kN; ++i) {
    a.part[i] = hn::IfThenElse(hn::Gt(a.part[i], b.part[i]), yes.part[i], no.part[i]);
  }
  return a;
}
HWY_INLINE Lanes Max(Lanes a, Lanes b) {
  for (size_t i = 0; i < Lanes::kN; ++i) a.part[i] = hn::Max(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE Lanes Min(Lanes a, Lanes b) {
  for (size_t i = 0; i < Lanes::kN; ++i) a.part[i] = hn::Min(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE Lanes Trunc(Lanes a) {
  for (size_t i = 0; i < Lanes::kN; ++i) a.part[i] = hn::Trunc(a.part[i]);
  return a;
}
HWY_INLINE Lanes Sqrt(Lanes a) {
  for (size_t i = 0; i < Lanes::kN; ++i) a.part[i] = hn::Sqrt(a.part[i]);
  return a;
}

#undef QKV_LANES_ATTR
#define QKV_LANES_ATTR HWY_ATTR
#include "quant/round_tile_inl.h"

}  // namespace

void RoundTileInMetric(const ErrorMetric& metric, const float* x, size_t rows, int bits, uint8_t* codes,
                       RowScale* scales, float* costs) {
  RoundTile(metric, x, rows, bits, codes, scales, costs);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkvshare
HWY_AFTER_NAMESPACE();

#endif
