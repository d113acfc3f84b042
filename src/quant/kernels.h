// The row kernels: what turns the FP16 row of one token and one KV head into codes, and back.
//
// The scalar kernels define the result. Every other set gives the same codes, scales and rows: sums are 16 interleaved
// partial sums combined pairwise, and this module is compiled without contraction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "qkvshare/status.h"
#include "quant/error_metric.h"
#include "quant/half.h"
#include "quant/row_scale.h"

namespace qkvshare {

inline constexpr size_t kMaxHeadDim = 1024;

// The space in which rows of one KV head are quantized: x -> rotation of (x - mean) / scale.
struct RowSpace {
  size_t dim = 0;             // multiple of 8, at most kMaxHeadDim
  size_t rotation_block = 0;  // RotationBlock(dim)
  // [dim] each, or all null: neither mean nor scale.
  const float* mean = nullptr;
  const float* scale = nullptr;
  const float* inverse_scale = nullptr;
};

struct Kernels {
  const char* name;  // "scalar", "avx2", "avx512", "neon"

  // Multiplies each run of `block` values of x [dim] by the orthonormal Hadamard matrix; its own inverse. block: a
  // power of two, at least 8, that divides dim.
  void (*rotate)(float* x, size_t dim, size_t block);

  // row [dim] -> x [dim] in the space of the codes. False where a value of the row is NaN or Inf; x is then undefined.
  bool (*transform_row)(const Half* row, const RowSpace& space, float* x);

  // Quantizes x [dim] (finite) to `bits` in {2, 4, 8}: codes [dim], one a byte, and one scale. 8 bits: mid-tread, codes
  // 1..255, every error at most half a step. 2 and 4 bits: the best by squared error of 14 clip points on both grids,
  // with a least-squares refit of the scale; at 2 bits the scale then keeps the row's length instead.
  // Returns the squared error of the result, summed over the row.
  float (*quantize_row)(const float* x, size_t dim, int bits, uint8_t* codes, RowScale* scale);

  // As quantize_row, but goes by the cost of errors in a metric: up to kTileTokens rows at 2 or 4 bits. x: [dim,
  // kTileTokens], a row a column, zero past `rows`. codes: [rows, dim]; scales, costs: [rows].
  //
  // Each channel is rounded to the level nearest to its value less what the errors of the channels before it cost here
  // (error feedback, which is Babai's nearest plane; GPTQ, arXiv 2210.17323, does it with weights). Of some steps on
  // both grids the one is taken that leaves the least cost once its scale is refitted.
  void (*round_tile)(const ErrorMetric& metric, const float* x, size_t rows, int bits, uint8_t* codes, RowScale* scales,
                     float* costs);

  // The inverse of both: codes [dim] -> row [dim], rounded to FP16 and limited to its range.
  void (*restore_row)(const uint8_t* codes, int bits, RowScale scale, const RowSpace& space, Half* row);
};

const Kernels& ScalarKernels();

// The sets that this CPU has, fastest first; the last is the scalar one.
const std::vector<const Kernels*>& AvailableKernels();

// The fastest set for this CPU, or the one that QKV_FORCE_ISA names. kInvalidArgument, with the names that there are,
// for one that this CPU or this build does not have.
Result<const Kernels*> SelectKernels();

// Largest power of two that divides dim: the rotation's block.
size_t RotationBlock(size_t dim);

}  // namespace qkvshare
