// The reference: what every other set of kernels must reproduce to the bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "quant/float4.h"
#include "quant/kernels.h"
#include "quant/kernels_common.h"
#include "quant/round_tile_scalar.h"

namespace qkvshare {
namespace {

using Int4 = int32_t __attribute__((vector_size(16)));

Float4 Abs(Float4 v) { return v < 0 ? -v : v; }

// a > b ? a : b, and a < b ? a : b, which GCC does not make one instruction of.
Float4 Max(Float4 a, Float4 b) {
#if defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
Float4 Min(Float4 a, Float4 b) {
#if defined(__SSE2__)
  return _mm_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}
Float4 Clamp(Float4 v, float low, float high) { return Min(Max(v, Float4{} + low), Float4{} + high); }

// Codes on their way into bytes: narrowed all at once, which is faster than four by four.
struct CodeRow {
  std::array<int32_t, kMaxHeadDim> codes;

  void Put4(size_t i, Int4 v) { std::memcpy(&codes[i], &v, sizeof v); }
  Float4 Get4(size_t i) const {
    Int4 v;
    std::memcpy(&v, &codes[i], sizeof v);
    return __builtin_convertvector(v, Float4);
  }
  void Narrow(size_t dim, uint8_t* out) const {
    for (size_t i = 0; i < dim; ++i) out[i] = static_cast<uint8_t>(codes[i]);
  }
};

// 16 interleaved partial sums. Quarter q of a step has values 4 * q to 4 * q + 3; a last step of 8 values has two.
struct Lanes {
  std::array<Float4, 4> quarter{};

  // Pairwise: 8 apart, 4 apart, 2 apart, neighbours.
  float Total() const {
    const Float4 sum = (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
  }
};

// Calls step(i, q) for values i to i + 3, which belong to quarter q.
template <typename Step>
void ForQuarters(size_t dim, const Step& step) {
  size_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    step(i, 0);
    step(i + 4, 1);
    step(i + 8, 2);
    step(i + 12, 3);
  }
  for (size_t q = 0; i < dim; i += 4) step(i, q++);
}

// The steps of 1 and 2 within four values.
Float4 Rotate4(Float4 v) {
  constexpr Float4 kOddMinus = {1, -1, 1, -1};
  constexpr Float4 kHighMinus = {1, 1, -1, -1};
  v = __builtin_shufflevector(v, v, 0, 0, 2, 2) + __builtin_shufflevector(v, v, 1, 1, 3, 3) * kOddMinus;
  return __builtin_shufflevector(v, v, 0, 1, 0, 1) + __builtin_shufflevector(v, v, 2, 3, 2, 3) * kHighMinus;
}

void RotateBlock(float* x, size_t block) {
  for (size_t i = 0; i < block; i += 4) Store4(Rotate4(Load4(x + i)), x + i);
  for (size_t half = 4; half < block; half *= 2) {
    for (size_t i = 0; i < block; i += 2 * half) {
      for (size_t j = i; j < i + half; j += 4) {
        const Float4 a = Load4(x + j);
        const Float4 b = Load4(x + j + half);
        Store4(a + b, x + j);
        Store4(a - b, x + j + half);
      }
    }
  }
  const float norm = 1.0f / std::sqrt(static_cast<float>(block));
  for (size_t i = 0; i < block; ++i) x[i] *= norm;
}

void Rotate(float* x, size_t dim, size_t block) {
  for (size_t i = 0; i < dim; i += block) RotateBlock(x + i, block);
}

float AbsMax(const float* x, size_t dim) {
  Lanes most;
  ForQuarters(dim, [&](size_t i, size_t q) { most.quarter[q] = Max(most.quarter[q], Abs(Load4(x + i))); });
  const Float4 all = Max(Max(most.quarter[0], most.quarter[1]), Max(most.quarter[2], most.quarter[3]));
  return std::max(std::max(all[0], all[1]), std::max(all[2], all[3]));
}

float SquaredError(const float* x, const CodeRow& row, size_t dim, float zero_code, float step) {
  Lanes sums;
  ForQuarters(dim, [&](size_t i, size_t q) {
    const Float4 difference = Load4(x + i) - (row.Get4(i) - zero_code) * step;
    sums.quarter[q] += difference * difference;
  });
  return sums.Total();
}

// Truncation after an offset rounds: to the nearest level of either grid, half up.
Int4 Code4(Float4 x, float inverse_step, float zero_code, float least, float most) {
  return __builtin_convertvector(Clamp(x * inverse_step + (zero_code + 0.5f), least, most), Int4);
}

float QuantizeRow8(const float* x, size_t dim, float absmax, uint8_t* codes, RowScale* scale) {
  *scale = MakeScaleAtLeast(absmax / kOutermost8, CodeGrid::kMidTread);
  const float step = ScaleStep(*scale);
  const float inverse_step = 1.0f / step;
  CodeRow row;
  for (size_t i = 0; i < dim; i += 4) row.Put4(i, Code4(Load4(x + i), inverse_step, 128.0f, 1.0f, 255.0f));
  row.Narrow(dim, codes);
  return SquaredError(x, row, dim, 128.0f, step);
}

Fit FitClip(const float* x, size_t dim, int bits, CodeGrid grid, float inverse_step) {
  const float zero_code = ZeroCode(grid, bits);
  const auto most = static_cast<float>((1 << bits) - 1);
  Lanes dot;
  Lanes norm;
  ForQuarters(dim, [&](size_t i, size_t q) {
    const Float4 v = Load4(x + i);
    const Float4 level = __builtin_convertvector(Code4(v, inverse_step, zero_code, 0.0f, most), Float4) - zero_code;
    dot.quarter[q] += v * level;
    norm.quarter[q] += level * level;
  });
  return {grid, inverse_step, dot.Total(), norm.Total()};
}

Fit BestFit(const float* x, size_t dim, int bits, float absmax) {
  Fit best;
  float best_gain = -1;
  for (const CodeGrid grid : {CodeGrid::kMidRise, CodeGrid::kMidTread}) {
    for (size_t i = 0; i < kClipPoints; ++i) {
      const Fit fit = FitClip(x, dim, bits, grid, OutermostLevel(grid, bits) / (absmax * ClipPoint(i)));
      if (fit.gain() <= best_gain * kClearlyMore) continue;
      best = fit;
      best_gain = fit.gain();
    }
  }
  return best;
}

float SquaredNorm(const float* x, size_t dim) {
  Lanes sums;
  ForQuarters(dim, [&](size_t i, size_t q) { sums.quarter[q] += Load4(x + i) * Load4(x + i); });
  return sums.Total();
}

float QuantizeRowBySearch(const float* x, size_t dim, int bits, float absmax, uint8_t* codes, RowScale* scale) {
  const Fit fit = BestFit(x, dim, bits, absmax);
  // At 2 bits the least-squares scale shrinks every row by a tenth, and attention then misses the tokens it should see.
  const float step = bits == 2 ? std::sqrt(SquaredNorm(x, dim) / fit.norm) : fit.dot / fit.norm;
  *scale = MakeScale(step, fit.grid);
  const float zero_code = ZeroCode(fit.grid, bits);
  const auto most = static_cast<float>((1 << bits) - 1);
  CodeRow row;
  for (size_t i = 0; i < dim; i += 4) row.Put4(i, Code4(Load4(x + i), fit.inverse_step, zero_code, 0.0f, most));
  row.Narrow(dim, codes);
  return SquaredError(x, row, dim, zero_code, ScaleStep(*scale));
}

float QuantizeRow(const float* x, size_t dim, int bits, uint8_t* codes, RowScale* scale) {
  const float absmax = AbsMax(x, dim);
  if (absmax < kSmallestRow) return QuantizeZeroRow(dim, bits, codes, scale);
  return bits == 8 ? QuantizeRow8(x, dim, absmax, codes, scale)
                   : QuantizeRowBySearch(x, dim, bits, absmax, codes, scale);
}

bool TransformRow(const Half* row, const RowSpace& space, float* x) {
  int bad = 0;
  for (size_t c = 0; c < space.dim; ++c) bad += IsFiniteHalf(row[c]) ? 0 : 1;
  if (bad != 0) return false;
  for (size_t c = 0; c < space.dim; ++c) x[c] = HalfToFloat(row[c]);
  if (space.mean != nullptr) {
    for (size_t c = 0; c < space.dim; ++c) x[c] = (x[c] - space.mean[c]) * space.inverse_scale[c];
  }
  Rotate(x, space.dim, space.rotation_block);
  return true;
}

void RestoreRow(const uint8_t* codes, int bits, RowScale scale, const RowSpace& space, Half* row) {
  const float step = ScaleStep(scale);
  const float zero_code = ZeroCode(ScaleGrid(scale), bits);
  std::array<float, kMaxHeadDim> x;
  for (size_t c = 0; c < space.dim; ++c) x[c] = (static_cast<float>(codes[c]) - zero_code) * step;
  Rotate(x.data(), space.dim, space.rotation_block);
  if (space.mean != nullptr) {
    for (size_t c = 0; c < space.dim; ++c) x[c] = x[c] * space.scale[c] + space.mean[c];
  }
  for (size_t c = 0; c < space.dim; ++c) row[c] = FloatToHalf(x[c]);
}

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kScalar = {"scalar", Rotate, TransformRow, QuantizeRow, RoundTileScalar, RestoreRow};
  return kScalar;
}

}  // namespace qkvshare
