// The kernels for AVX2, AVX-512 and NEON: one source, which Highway's foreach_target.h includes once for each.
//
// They give the bits of kernels_scalar.cc. So sums have its 16 interleaved lanes, in vectors of at most 16 floats; each
// product and each sum is rounded on its own; and what is done in another way (integers, MulAdd) is exact.
#include "quant/kernels_simd.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "quant/kernels_common.h"

// Only what the tables below have. AES is not used, and not all CPUs with NEON have it.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/kernels_simd.cc"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON

HWY_BEFORE_NAMESPACE();
namespace qkvshare {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Rows are a multiple of 8 long: where not of 16 too, vectors of 16 floats are not used.
using Wide = hn::CappedTag<float, 16>;
using Narrow = hn::CappedTag<float, 8>;

template <class D>
using Vec = hn::Vec<D>;

// ---- The rotation ----

// Sign bits of the lanes whose partner, kStep below, comes first.
template <size_t kStep>
struct Signs {
  alignas(64) static constexpr std::array<uint32_t, 16> kBits = [] {
    std::array<uint32_t, 16> bits{};
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = (i & kStep) != 0 ? 0x80000000u : 0u;
    return bits;
  }();
};

template <size_t kStep, class D>
HWY_INLINE Vec<D> Swap(D d, Vec<D> v) {
  if constexpr (kStep == 1) return hn::Shuffle2301(v);
  if constexpr (kStep == 2) return hn::Shuffle1032(v);
  if constexpr (kStep == 4) return hn::SwapAdjacentBlocks(v);
  if constexpr (kStep == 8) return hn::ConcatLowerUpper(d, v, v);
}

// The steps within a vector: a + b and a - b for lanes kStep apart, then for those twice as far.
template <size_t kStep, class D>
HWY_INLINE Vec<D> RotateVector(D d, Vec<D> v) {
  if constexpr (kStep >= hn::MaxLanes(D())) {
    return v;
  } else {
    const auto signs = hn::BitCast(d, hn::Load(hn::Rebind<uint32_t, D>(), Signs<kStep>::kBits.data()));
    return RotateVector<2 * kStep>(d, hn::Add(Swap<kStep>(d, v), hn::Xor(v, signs)));
  }
}

// The steps between kN vectors, from those kHalf apart.
template <size_t kHalf, size_t kN, class V>
HWY_INLINE void RotateVectors(V* v) {
  if constexpr (kHalf < kN) {
    for (size_t i = 0; i < kN; i += 2 * kHalf) {
      for (size_t j = i; j < i + kHalf; ++j) {
        const V a = v[j];
        v[j] = hn::Add(a, v[j + kHalf]);
        v[j + kHalf] = hn::Sub(a, v[j + kHalf]);
      }
    }
    RotateVectors<2 * kHalf, kN>(v);
  }
}

// All steps within kChunk values, which stay in registers; the results are multiplied by norm.
template <size_t kChunk>
HWY_INLINE void RotateChunk(float norm, float* x) {
  const hn::CappedTag<float, kChunk> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kN = kChunk / kLanes;
  Vec<decltype(d)> v[kN];
  for (size_t i = 0; i < kN; ++i) v[i] = RotateVector<1>(d, hn::LoadU(d, x + i * kLanes));
  RotateVectors<1, kN>(v);
  for (size_t i = 0; i < kN; ++i) hn::StoreU(hn::Mul(v[i], hn::Set(d, norm)), d, x + i * kLanes);
}

constexpr size_t kLargestChunk = 64;

void RotateBlock(float* x, size_t block) {
  const float norm = 1.0f / std::sqrt(static_cast<float>(block));
  switch (block) {
    case 8: return RotateChunk<8>(norm, x);
    case 16: return RotateChunk<16>(norm, x);
    case 32: return RotateChunk<32>(norm, x);
    case 64: return RotateChunk<64>(norm, x);
    default: break;
  }
  for (size_t i = 0; i < block; i += kLargestChunk) RotateChunk<kLargestChunk>(1.0f, x + i);
  const Wide d;
  for (size_t half = kLargestChunk; half < block; half *= 2) {
    const auto factor = hn::Set(d, 2 * half == block ? norm : 1.0f);
    for (size_t i = 0; i < block; i += 2 * half) {
      for (size_t j = i; j < i + half; j += hn::MaxLanes(d)) {
        const auto a = hn::LoadU(d, x + j);
        const auto b = hn::LoadU(d, x + j + half);
        hn::StoreU(hn::Mul(hn::Add(a, b), factor), d, x + j);
        hn::StoreU(hn::Mul(hn::Sub(a, b), factor), d, x + j + half);
      }
    }
  }
}

void Rotate(float* x, size_t dim, size_t block) {
  for (size_t i = 0; i < dim; i += block) RotateBlock(x + i, block);
}

// ---- FP16 ----

template <class D>
HWY_INLINE bool TransformRowBy(D d, const Half* row, const RowSpace& space, float* x) {
  const hn::Rebind<uint16_t, D> dh;
  const auto exponent = hn::Set(dh, uint16_t{0x7C00});
  auto largest = hn::Zero(dh);
  for (size_t c = 0; c < space.dim; c += hn::MaxLanes(d)) {
    const auto half = hn::LoadU(dh, row + c);
    largest = hn::Max(largest, hn::And(half, exponent));
    auto v = hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
    if (space.mean != nullptr) {
      v = hn::Mul(hn::Sub(v, hn::LoadU(d, space.mean + c)), hn::LoadU(d, space.inverse_scale + c));
    }
    hn::StoreU(v, d, x + c);
  }
  if (!hn::AllFalse(dh, hn::Eq(largest, exponent))) return false;
  Rotate(x, space.dim, space.rotation_block);
  return true;
}

bool TransformRow(const Half* row, const RowSpace& space, float* x) {
  return space.dim % 16 == 0 ? TransformRowBy(Wide(), row, space, x) : TransformRowBy(Narrow(), row, space, x);
}

// Rounds to nearest even, and limits Inf, of which the conversion makes all that is too large, to the largest value:
// as signed numbers these are the largest, as unsigned numbers those with a sign.
template <class D>
HWY_INLINE void StoreHalf(D, Vec<D> v, Half* out) {
  const hn::Rebind<int16_t, D> di;
  const hn::Rebind<uint16_t, D> du;
  const auto half = hn::BitCast(di, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
  const auto limited = hn::BitCast(du, hn::Min(half, hn::Set(di, int16_t{0x7BFF})));
  hn::StoreU(hn::Min(limited, hn::Set(du, uint16_t{0xFBFF})), du, out);
}

template <class D>
HWY_INLINE Vec<D> LoadCodes(D d, const uint8_t* codes) {
  return hn::ConvertTo(d, hn::PromoteTo(hn::Rebind<int32_t, D>(), hn::LoadU(hn::Rebind<uint8_t, D>(), codes)));
}

// ---- Quantization ----

// The 16 interleaved partial sums.
template <class D>
struct Sums {
  static constexpr size_t kN = 16 / hn::MaxLanes(D());
  Vec<D> part[kN];

  HWY_INLINE Sums() {
    for (size_t i = 0; i < kN; ++i) part[i] = hn::Zero(D());
  }
};

using Quarter = hn::Full128<float>;

// Of 16 lanes in one vector or several, four: 8 apart, then 4 apart.
template <class D>
HWY_INLINE Vec<Quarter> SumQuarters(D, const Vec<D>* part) {
  if constexpr (hn::MaxLanes(D()) == 16) {
    const hn::Half<D> half;
    const Vec<decltype(half)> sum = hn::Add(hn::LowerHalf(half, part[0]), hn::UpperHalf(half, part[0]));
    return hn::Add(hn::LowerHalf(Quarter(), sum), hn::UpperHalf(Quarter(), sum));
  } else if constexpr (hn::MaxLanes(D()) == 8) {
    const Vec<D> sum = hn::Add(part[0], part[1]);
    return hn::Add(hn::LowerHalf(Quarter(), sum), hn::UpperHalf(Quarter(), sum));
  } else {
    return hn::Add(hn::Add(part[0], part[2]), hn::Add(part[1], part[3]));
  }
}

template <class D>
HWY_INLINE float Total(D d, const Sums<D>& sums) {
  const auto four = SumQuarters(d, sums.part);
  const auto two = hn::Add(four, hn::Shuffle1032(four));
  return hn::GetLane(hn::Add(two, hn::Shuffle2301(two)));
}

template <class D>
HWY_INLINE float AbsMax(D d, const float* x, size_t dim) {
  auto most = hn::Zero(d);
  for (size_t i = 0; i < dim; i += hn::MaxLanes(d)) most = hn::Max(most, hn::Abs(hn::LoadU(d, x + i)));
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// Calls step(c, k) for the values from c, which belong to partial sum k.
template <class D, class Step>
HWY_INLINE void ForParts(size_t dim, const Step& step) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  size_t c = 0;
  for (; c + 16 <= dim; c += 16) {
    for (size_t k = 0; k < 16 / kLanes; ++k) step(c + k * kLanes, k);
  }
  if (c == dim) return;
  for (size_t k = 0; k < 8 / kLanes; ++k) step(c + k * kLanes, k);
}

template <class D>
HWY_INLINE float SquaredNorm(D d, const float* x, size_t dim) {
  Sums<D> sums;
  ForParts<D>(dim, [&](size_t c, size_t k) HWY_ATTR {
    const auto v = hn::LoadU(d, x + c);
    sums.part[k] = hn::Add(sums.part[k], hn::Mul(v, v));
  });
  return Total(d, sums);
}

// How values become codes: truncation after an offset rounds to the nearest level of either grid, half up.
struct CodeRule {
  float inverse_step, zero_code, least, most;
};

// As floats, which hold them exactly.
template <class D>
HWY_INLINE Vec<D> Code(Vec<D> v, const CodeRule& rule) {
  const D d;
  const auto place = hn::Add(hn::Mul(v, hn::Set(d, rule.inverse_step)), hn::Set(d, rule.zero_code + 0.5f));
  return hn::Trunc(hn::Min(hn::Max(place, hn::Set(d, rule.least)), hn::Set(d, rule.most)));
}

// Writes the codes; returns the squared error that they leave.
template <class D>
HWY_INLINE float WriteCodes(D d, const float* x, size_t dim, const CodeRule& rule, float step, uint8_t* codes) {
  Sums<D> sums;
  ForParts<D>(dim, [&](size_t c, size_t k) HWY_ATTR {
    const auto v = hn::LoadU(d, x + c);
    const auto code = Code<D>(v, rule);
    const auto bytes = hn::DemoteTo(hn::Rebind<uint8_t, D>(), hn::ConvertTo(hn::Rebind<int32_t, D>(), code));
    hn::StoreU(bytes, hn::Rebind<uint8_t, D>(), codes + c);
    const auto level = hn::Mul(hn::Sub(code, hn::Set(d, rule.zero_code)), hn::Set(d, step));
    const auto difference = hn::Sub(v, level);
    sums.part[k] = hn::Add(sums.part[k], hn::Mul(difference, difference));
  });
  return Total(d, sums);
}

template <class D>
HWY_INLINE float QuantizeRow8(D d, const float* x, size_t dim, float absmax, uint8_t* codes, RowScale* scale) {
  *scale = MakeScaleAtLeast(absmax / kOutermost8, CodeGrid::kMidTread);
  const float step = ScaleStep(*scale);
  return WriteCodes(d, x, dim, {1.0f / step, 128.0f, 1.0f, 255.0f}, step, codes);
}

// The fits of all clip points, 16 places a grid, of which the last two hold a fit without gain.
struct Fits {
  static constexpr size_t kPlaces = 16;
  static_assert(kClipPoints <= kPlaces);
  static constexpr std::array<CodeGrid, 2> kGrids = {CodeGrid::kMidRise, CodeGrid::kMidTread};

  alignas(64) std::array<float, 2 * kPlaces> inverse_step;
  alignas(64) std::array<float, 2 * kPlaces> gain;
  // Four sums each, which are added up for many fits at once.
  alignas(64) std::array<float, 2 * kPlaces * 4> dot;
  alignas(64) std::array<float, 2 * kPlaces * 4> norm;
};

struct ClipPoints {
  alignas(64) static constexpr std::array<float, Fits::kPlaces> kValues = [] {
    std::array<float, Fits::kPlaces> points{};
    for (size_t i = 0; i < points.size(); ++i) points[i] = ClipPoint(i);
    return points;
  }();
};

// Dots and norms of one clip point on both grids. Norms are sums of squares of halves, exact in any order.
template <class D>
HWY_INLINE void FitClip(D d, const float* x, size_t dim, const CodeRule& rise, const CodeRule& tread, size_t i,
                        Fits* fits) {
  Sums<D> dot_rise, dot_tread, norm_rise, norm_tread;
  ForParts<D>(dim, [&](size_t c, size_t k) HWY_ATTR {
    const auto v = hn::LoadU(d, x + c);
    const auto level_rise = hn::Sub(Code<D>(v, rise), hn::Set(d, rise.zero_code));
    const auto level_tread = hn::Sub(Code<D>(v, tread), hn::Set(d, tread.zero_code));
    dot_rise.part[k] = hn::Add(dot_rise.part[k], hn::Mul(v, level_rise));
    dot_tread.part[k] = hn::Add(dot_tread.part[k], hn::Mul(v, level_tread));
    norm_rise.part[0] = hn::MulAdd(level_rise, level_rise, norm_rise.part[0]);
    norm_tread.part[0] = hn::MulAdd(level_tread, level_tread, norm_tread.part[0]);
  });
  const size_t j = i + Fits::kPlaces;
  hn::Store(SumQuarters(d, dot_rise.part), Quarter(), &fits->dot[4 * i]);
  hn::Store(SumQuarters(d, dot_tread.part), Quarter(), &fits->dot[4 * j]);
  hn::Store(SumQuarters(d, norm_rise.part), Quarter(), &fits->norm[4 * i]);
  hn::Store(SumQuarters(d, norm_tread.part), Quarter(), &fits->norm[4 * j]);
}

// Totals of four sums each, for as many fits as a vector has lanes.
template <class D>
HWY_INLINE Vec<D> Totals(D d, const float* sums) {
  Vec<D> s0, s1, s2, s3;
  hn::LoadInterleaved4(d, sums, s0, s1, s2, s3);
  return hn::Add(hn::Add(s0, s2), hn::Add(s1, s3));
}

// The last fit that has clearly more gain than the best before it. Where the largest gain is clearly more than all
// others, which is so for nearly every row, that is it, and no branch depends on the order of the others.
template <class D>
HWY_INLINE size_t FirstClearlyBest(D d, const std::array<float, 2 * Fits::kPlaces>& gain) {
  auto most = hn::Load(d, gain.data());
  for (size_t i = hn::MaxLanes(d); i < gain.size(); i += hn::MaxLanes(d)) most = hn::Max(most, hn::Load(d, &gain[i]));
  most = hn::MaxOfLanes(d, most);
  size_t rivals = 0;
  size_t best = 0;
  for (size_t i = 0; i < gain.size(); i += hn::MaxLanes(d)) {
    const auto rival = hn::Ge(hn::Mul(hn::Load(d, &gain[i]), hn::Set(d, kClearlyMore)), most);
    rivals += hn::CountTrue(d, rival);
    if (const intptr_t first = hn::FindFirstTrue(d, rival); first >= 0) best = i + static_cast<size_t>(first);
  }
  if (rivals == 1) return best;
  best = 0;
  for (size_t i = 1; i < gain.size(); ++i) {
    if (gain[i] > gain[best] * kClearlyMore) best = i;
  }
  return best;
}

template <class D>
HWY_INLINE Fit BestFit(D d, const float* x, size_t dim, int bits, float absmax) {
  Fits fits;
  for (size_t g = 0; g < 2; ++g) {
    const auto outermost = hn::Set(d, OutermostLevel(Fits::kGrids[g], bits));
    for (size_t i = 0; i < Fits::kPlaces; i += hn::MaxLanes(d)) {
      const auto range = hn::Mul(hn::Set(d, absmax), hn::Load(d, &ClipPoints::kValues[i]));
      hn::Store(hn::Div(outermost, range), d, &fits.inverse_step[g * Fits::kPlaces + i]);
    }
    for (size_t i = kClipPoints; i < Fits::kPlaces; ++i) {
      hn::Store(hn::Zero(Quarter()), Quarter(), &fits.dot[4 * (g * Fits::kPlaces + i)]);
      hn::Store(hn::Set(Quarter(), 1.0f), Quarter(), &fits.norm[4 * (g * Fits::kPlaces + i)]);
    }
  }
  CodeRule rise = {0, ZeroCode(CodeGrid::kMidRise, bits), 0.0f, static_cast<float>((1 << bits) - 1)};
  CodeRule tread = {0, ZeroCode(CodeGrid::kMidTread, bits), 0.0f, rise.most};
  for (size_t i = 0; i < kClipPoints; ++i) {
    rise.inverse_step = fits.inverse_step[i];
    tread.inverse_step = fits.inverse_step[Fits::kPlaces + i];
    FitClip(d, x, dim, rise, tread, i, &fits);
  }
  for (size_t i = 0; i < fits.gain.size(); i += hn::MaxLanes(d)) {
    const auto dot = Totals(d, &fits.dot[4 * i]);
    const auto norm = Totals(d, &fits.norm[4 * i]);
    hn::Store(hn::Mul(dot, hn::Div(dot, norm)), d, &fits.gain[i]);
  }
  const size_t best = FirstClearlyBest(d, fits.gain);
  const auto total = [&](const auto& sums) {
    return (sums[4 * best] + sums[4 * best + 2]) + (sums[4 * best + 1] + sums[4 * best + 3]);
  };
  return {Fits::kGrids[best / Fits::kPlaces], fits.inverse_step[best], total(fits.dot), total(fits.norm)};
}

template <class D>
HWY_INLINE float QuantizeRowBy(D d, const float* x, size_t dim, int bits, uint8_t* codes, RowScale* scale) {
  const float absmax = AbsMax(d, x, dim);
  if (absmax < kSmallestRow) return QuantizeZeroRow(dim, bits, codes, scale);
  if (bits == 8) return QuantizeRow8(d, x, dim, absmax, codes, scale);
  const Fit fit = BestFit(d, x, dim, bits, absmax);
  const float step = bits == 2 ? std::sqrt(SquaredNorm(d, x, dim) / fit.norm) : fit.dot / fit.norm;
  *scale = MakeScale(step, fit.grid);
  const auto most = static_cast<float>((1 << bits) - 1);
  return WriteCodes(d, x, dim, {fit.inverse_step, ZeroCode(fit.grid, bits), 0.0f, most}, ScaleStep(*scale), codes);
}

float QuantizeRow(const float* x, size_t dim, int bits, uint8_t* codes, RowScale* scale) {
  return dim % 16 == 0 ? QuantizeRowBy(Wide(), x, dim, bits, codes, scale)
                       : QuantizeRowBy(Narrow(), x, dim, bits, codes, scale);
}

// ---- Restoring ----

// What follows the rotation of codes: two factors, of which the second may be one, and the profile.
struct Finish {
  float step, norm;
  const float* scale;  // of the channels, or null
  const float* mean;
  Half* row;

  template <bool kTwoFactors, bool kProfile, class D>
  HWY_INLINE void Put(D d, size_t c, Vec<D> v) const {
    v = hn::Mul(v, hn::Set(d, step));
    if constexpr (kTwoFactors) v = hn::Mul(v, hn::Set(d, norm));
    if constexpr (kProfile) v = hn::Add(hn::Mul(v, hn::LoadU(d, scale + c)), hn::LoadU(d, mean + c));
    StoreHalf(d, v, row + c);
  }
};

// The step between two vectors of int16, and those within 128 bits: interleaved after each step, the next partners meet
// in two vectors, and after four times each value is where it was.
template <class D, class V>
HWY_INLINE void RotatePair(D d, V* a, V* b) {
  for (int i = 0; i < 4; ++i) {
    const V sum = hn::Add(*a, *b);
    const V difference = hn::Sub(*a, *b);
    *a = hn::InterleaveLower(d, sum, difference);
    *b = hn::InterleaveUpper(d, sum, difference);
  }
}

// Restores a block from the rotation of its codes in 16-bit integers. That is exact, as the scalar kernel is here: a
// sum of 128 codes of 8 bits and its product with a step, of 8 bits too, fit a float. Where codes are centered matters
// to the first value only.
template <size_t kBlock, bool kTwoFactors, bool kProfile>
HWY_INLINE void RestoreBlock(const uint8_t* codes, float zero_code, const Finish& finish, size_t at) {
  const hn::CappedTag<int16_t, kBlock / 2> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kN = kBlock / kLanes;
  using V = Vec<decltype(d)>;
  V v[kN];
  for (size_t i = 0; i < kN; ++i) {
    v[i] = hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint8_t, decltype(d)>(), codes + at + i * kLanes));
    if constexpr (kLanes == 32) {  // the step between neighbouring 128 bits
      const V sum = hn::Add(v[i], hn::SwapAdjacentBlocks(v[i]));
      v[i] = hn::OddEvenBlocks(hn::Sub(hn::SwapAdjacentBlocks(v[i]), v[i]), sum);
    }
  }
  RotateVectors<2, kN>(v);
  const hn::Half<decltype(d)> dh;
  const hn::Rebind<float, decltype(dh)> df;
  const auto put = [&](size_t c, auto part) HWY_ATTR {
    auto f = hn::ConvertTo(df, hn::PromoteTo(hn::Rebind<int32_t, decltype(dh)>(), part));
    if (c == 0) f = hn::Sub(f, hn::IfThenElseZero(hn::FirstN(df, 1), hn::Set(df, zero_code * kBlock)));
    finish.Put<kTwoFactors, kProfile>(df, at + c, f);
  };
  for (size_t i = 0; i < kN; i += 2) {
    RotatePair(d, &v[i], &v[i + 1]);
    if constexpr (kLanes == 8) {
      put(i * kLanes, hn::LowerHalf(dh, v[i]));
      put(i * kLanes + kLanes / 2, hn::UpperHalf(dh, v[i]));
      put((i + 1) * kLanes, hn::LowerHalf(dh, v[i + 1]));
      put((i + 1) * kLanes + kLanes / 2, hn::UpperHalf(dh, v[i + 1]));
    } else {
      // The step between halves of a vector: they change places with the vectors.
      const V low = hn::ConcatLowerLower(d, v[i + 1], v[i]);
      const V high = hn::ConcatUpperUpper(d, v[i + 1], v[i]);
      const V sum = hn::Add(low, high);
      const V difference = hn::Sub(low, high);
      put(i * kLanes, hn::LowerHalf(dh, sum));
      put(i * kLanes + kLanes / 2, hn::LowerHalf(dh, difference));
      put((i + 1) * kLanes, hn::UpperHalf(dh, sum));
      put((i + 1) * kLanes + kLanes / 2, hn::UpperHalf(dh, difference));
    }
  }
}

template <size_t kBlock>
HWY_INLINE void RestoreBlocks(const uint8_t* codes, size_t dim, float zero_code, Finish finish) {
  constexpr bool kTwoFactors = kBlock == 32 || kBlock == 128;  // else the norm is a power of two: any order is exact
  if constexpr (!kTwoFactors) finish.step *= finish.norm;
  if (finish.scale == nullptr) {
    for (size_t i = 0; i < dim; i += kBlock) RestoreBlock<kBlock, kTwoFactors, false>(codes, zero_code, finish, i);
  } else {
    for (size_t i = 0; i < dim; i += kBlock) RestoreBlock<kBlock, kTwoFactors, true>(codes, zero_code, finish, i);
  }
}

// As the scalar kernel, step by step: for the blocks and scales that the other way does not take.
template <class D>
HWY_INLINE void RestoreByFloats(D d, const uint8_t* codes, float zero_code, float step, const RowSpace& space,
                                Half* row) {
  alignas(64) std::array<float, kMaxHeadDim> x;
  for (size_t c = 0; c < space.dim; c += hn::MaxLanes(d)) {
    hn::StoreU(hn::Mul(hn::Sub(LoadCodes(d, codes + c), hn::Set(d, zero_code)), hn::Set(d, step)), d, &x[c]);
  }
  Rotate(x.data(), space.dim, space.rotation_block);
  for (size_t c = 0; c < space.dim; c += hn::MaxLanes(d)) {
    auto v = hn::LoadU(d, &x[c]);
    if (space.mean != nullptr) v = hn::Add(hn::Mul(v, hn::LoadU(d, space.scale + c)), hn::LoadU(d, space.mean + c));
    StoreHalf(d, v, row + c);
  }
}

void RestoreRow(const uint8_t* codes, int bits, RowScale scale, const RowSpace& space, Half* row) {
  const float step = ScaleStep(scale);
  const float zero_code = ZeroCode(ScaleGrid(scale), bits);
  const float norm = 1.0f / std::sqrt(static_cast<float>(space.rotation_block));
  const Finish finish = {step, norm, space.scale, space.mean, row};
  // Tiny steps may underflow, and products with zero have signs, which integers have not.
  switch (step > 0x1p-100f ? space.rotation_block : 0) {
    case 16: return RestoreBlocks<16>(codes, space.dim, zero_code, finish);
    case 32: return RestoreBlocks<32>(codes, space.dim, zero_code, finish);
    case 64: return RestoreBlocks<64>(codes, space.dim, zero_code, finish);
    case 128: return RestoreBlocks<128>(codes, space.dim, zero_code, finish);
    case 256:
      if (bits < 8) return RestoreBlocks<256>(codes, space.dim, zero_code, finish);
      break;
    default: break;
  }
  if (space.dim % 16 == 0) return RestoreByFloats(Wide(), codes, zero_code, step, space, row);
  RestoreByFloats(Narrow(), codes, zero_code, step, space, row);
}

}  // namespace

// In round_tile_simd.cc.
void RoundTileInMetric(const ErrorMetric& metric, const float* x, size_t rows, int bits, uint8_t* codes,
                       RowScale* scales, float* costs);

extern const Kernels kTable;
const Kernels kTable = {HWY_TARGET == HWY_AVX3   ? "avx512"
                        : HWY_TARGET == HWY_AVX2 ? "avx2"
                                                 : "neon",
                        Rotate,
                        TransformRow,
                        QuantizeRow,
                        RoundTileInMetric,
                        RestoreRow};

}  // namespace HWY_NAMESPACE
}  // namespace qkvshare
HWY_AFTER_NAMESPACE();

#endif

#if HWY_ONCE
namespace qkvshare {

std::vector<const Kernels*> SimdKernels() {
  std::vector<const Kernels*> sets;
#if HWY_ARCH_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#if HWY_TARGETS & HWY_AVX3
  if (avx512) sets.push_back(&N_AVX3::kTable);
#endif
#if HWY_TARGETS & HWY_AVX2
  if (avx2) sets.push_back(&N_AVX2::kTable);
#endif
#elif HWY_TARGETS & HWY_NEON
  sets.push_back(&N_NEON::kTable);
#endif
  return sets;
}

}  // namespace qkvshare
#endif
