#include "quant/kernels.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

namespace qkvshare {
namespace {

// Four floats at a time, by the vector extensions that GCC and clang share: each operation is that of the four scalars,
// on any CPU, and compiles to what the baseline instruction set has.
using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));

Float4 Load4(const float* x) {
  Float4 v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

void Store4(Float4 v, float* x) { std::memcpy(x, &v, sizeof v); }

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

float SquaredError(const float* x, const CodeRow& row, size_t dim, float offset, float scale) {
  Lanes sums;
  ForQuarters(dim, [&](size_t i, size_t q) {
    const Float4 difference = Load4(x + i) - (row.Get4(i) - offset) * scale;
    sums.quarter[q] += difference * difference;
  });
  return sums.Total();
}

constexpr float kOffset8 = 128.0f;
constexpr float kOffset4 = 7.5f;

float QuantizeRow8(const float* x, size_t dim, uint8_t* codes, Half* scale) {
  *scale = FloatToHalf(AbsMax(x, dim) / 127.0f);
  const float step = HalfToFloat(*scale);
  const float inverse = step > 0 ? 1.0f / step : 0.0f;
  CodeRow row;
  for (size_t i = 0; i < dim; i += 4) {
    // Truncation after the offset rounds half up.
    row.Put4(i, __builtin_convertvector(Clamp(Load4(x + i) * inverse, -127.0f, 127.0f) + 128.5f, Int4));
  }
  row.Narrow(dim, codes);
  return SquaredError(x, row, dim, kOffset8, step);
}

Int4 Code4(Float4 x, float inverse) { return __builtin_convertvector(Clamp(x * inverse + 8.0f, 0.0f, 15.0f), Int4); }

// Sums of the least-squares fit x ~ dot / norm * (code - 7.5) for one clip point.
struct FitSums {
  float dot, norm;
};
FitSums Fit4(const float* x, size_t dim, float inverse) {
  Lanes dot;
  Lanes norm;
  ForQuarters(dim, [&](size_t i, size_t q) {
    const Float4 v = Load4(x + i);
    const Float4 level = __builtin_convertvector(Code4(v, inverse), Float4) - kOffset4;
    dot.quarter[q] += v * level;
    norm.quarter[q] += level * level;
  });
  return {dot.Total(), norm.Total()};
}

constexpr int kClipPoints = 14;
constexpr float kTightestClip = 0.35f;
constexpr float kSmallestRow = 1e-20f;  // far below what an FP16 scale can hold

float QuantizeRow4(const float* x, size_t dim, uint8_t* codes, Half* scale) {
  const float absmax = AbsMax(x, dim);
  if (absmax < kSmallestRow) {
    std::fill_n(codes, dim, uint8_t{8});
    *scale = 0;
    return 0;
  }
  float best_gain = -1;
  float best_fit = 0;
  float best_inverse = 0;
  for (int i = 0; i < kClipPoints; ++i) {
    const float clip = kTightestClip + (1.0f - kTightestClip) / (kClipPoints - 1) * static_cast<float>(i);
    const float inverse = kOffset4 / (absmax * clip);
    const FitSums sums = Fit4(x, dim, inverse);
    // The fit's squared error is |x|^2 - dot^2 / norm: the largest gain has the least error.
    const float fit = sums.dot / sums.norm;
    const float gain = sums.dot * fit;
    if (gain > best_gain) {
      best_gain = gain;
      best_fit = fit;
      best_inverse = inverse;
    }
  }
  CodeRow row;
  for (size_t i = 0; i < dim; i += 4) row.Put4(i, Code4(Load4(x + i), best_inverse));
  row.Narrow(dim, codes);
  *scale = FloatToHalf(best_fit);
  return SquaredError(x, row, dim, kOffset4, HalfToFloat(*scale));
}

float QuantizeRow(const float* x, size_t dim, int bits, uint8_t* codes, Half* scale) {
  return bits == 8 ? QuantizeRow8(x, dim, codes, scale) : QuantizeRow4(x, dim, codes, scale);
}

void DequantizeRow(const uint8_t* codes, size_t dim, int bits, Half scale, float* x) {
  const float step = HalfToFloat(scale);
  const float offset = bits == 8 ? kOffset8 : kOffset4;
  for (size_t i = 0; i < dim; ++i) x[i] = (static_cast<float>(codes[i]) - offset) * step;
}

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kScalar = {"scalar", Rotate, QuantizeRow, DequantizeRow};
  return kScalar;
}

Result<const Kernels*> SelectKernels() {
  const char* forced =
      std::getenv("QKV_FORCE_ISA");  // NOLINT(concurrency-mt-unsafe): nothing here sets the environment
  if (forced != nullptr && *forced != '\0' && std::strcmp(forced, ScalarKernels().name) != 0) {
    return Status(StatusCode::kInvalidArgument,
                  std::string("QKV_FORCE_ISA=") + forced + " is not available; use scalar");
  }
  return &ScalarKernels();
}

size_t RotationBlock(size_t dim) { return dim & (~dim + 1); }

}  // namespace qkvshare
