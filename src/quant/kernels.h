// The row kernels: rotate, quantize and dequantize the vector of one token and one KV head.
//
// The scalar kernels define the result. Every other set gives the same codes and scales: sums are 16 interleaved
// partial sums combined pairwise, and this module is compiled without contraction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "qkvshare/status.h"
#include "quant/half.h"

namespace qkvshare {

inline constexpr size_t kMaxHeadDim = 1024;

struct Kernels {
  const char* name;

  // Multiplies each run of `block` values of x [dim] by the orthonormal Hadamard matrix; its own inverse. block: a
  // power of two, at least 4, that divides dim.
  void (*rotate)(float* x, size_t dim, size_t block);

  // Quantizes x [dim] (finite, dim a multiple of 8) to `bits` in {4, 8}: codes [dim], one a byte, and one scale.
  // 8 bits: x = (code - 128) * scale, code 1..255. 4 bits: mid-rise, x = (code - 7.5) * scale, code 0..15, where the
  // scale comes from a search over 14 clip points with a least-squares refit.
  // Returns the squared error of the result, summed over the row.
  float (*quantize_row)(const float* x, size_t dim, int bits, uint8_t* codes, Half* scale);

  // The inverse: x [dim].
  void (*dequantize_row)(const uint8_t* codes, size_t dim, int bits, Half scale, float* x);
};

const Kernels& ScalarKernels();

// The fastest set for this CPU, or the one that QKV_FORCE_ISA names (scalar). kInvalidArgument for a name that is
// unknown here.
Result<const Kernels*> SelectKernels();

// Largest power of two that divides dim: the rotation's block.
size_t RotationBlock(size_t dim);

}  // namespace qkvshare
