// The kernels of attention on packed rows (docs/attention.md). Integers are exact, so all sets agree in them; floats
// may differ in rounding. No kernel allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "qkvshare/status.h"
#include "quant/half.h"
#include "quant/kernels.h"
#include "quant/row_scale.h"

namespace qkvshare {

// Tokens of a block: whole tiles. Sums of 16-bit weights times 8-bit codes stay within 32 bits.
inline constexpr size_t kMaxBlockTokens = 256;
// 15 bits, and no more than 127 * 256 + 127: two signed bytes.
inline constexpr int kLargestWeight = 32639;
// Queries and weights that are all below it are quantized to zeros: the inverse of a smaller one may be infinite.
inline constexpr float kSmallestQuantized = 0x1p-100f;

// Queries [rows] that are ready for packed keys of one KV head.
struct PackedQueries {
  const int8_t* codes = nullptr;  // [rows, stride]; zeros from dim to stride
  size_t stride = 0;              // PackedQueryStride(dim)
  const float* scale = nullptr;   // [rows]: of the codes; the attention scale is in it
  const int32_t* sum = nullptr;   // [rows]: of the codes
  const float* bias = nullptr;    // [rows]: q.mean
};
constexpr size_t PackedQueryStride(size_t dim) { return AlignUp(dim, 64); }

// What a block's softmax needs beside the scores.
struct SoftmaxBlock {
  size_t rows = 0;
  size_t tokens = 0;                        // multiple of 16, at most kMaxBlockTokens
  size_t stride = 0;                        // of scores and weights, in values
  float* scores = nullptr;                  // [rows, stride]; overwritten
  float softcap = 0;                        // 0: none
  const uint32_t* first_visible = nullptr;  // [rows]: places before it are masked; null: all are seen
  size_t end = 0;                           // places from here on are masked, for every row
  const Half* const* mask = nullptr;        // [rows] of [tokens], added (-Inf masks); null: none
  float* max = nullptr;                     // [rows]: running maximum of the scores, -Inf before the first
  float* sum = nullptr;                     // [rows]: running sum of exp(score - max)
  float* rescale = nullptr;                 // [rows], out: what sums and accumulators so far were multiplied by, 0..1
};

struct AttendKernels {
  const char* name;  // as Kernels::name

  // q [dim] -> codes [stride] with a zero tail, round(q / scale), scale = max|q| / 127. Returns scale; all zeros for a
  // zero row.
  float (*quantize_query)(const float* q, size_t dim, int8_t* codes, size_t stride, int32_t* sum);

  // Scores of packed keys: tiles [count] full tiles of `bits` in {2, 4, 8}; scales [count * 16]; out [rows, stride]:
  //   out = query.scale * step_t * (sum_c q_c code_tc - zero_t * query.sum) + query.bias
  void (*key_dots)(const uint8_t* tiles, int bits, size_t count, size_t dim, const RowScale* scales,
                   const PackedQueries& queries, size_t rows, float* out, size_t stride);

  // Scores of FP16 keys: key t at keys + t * key_stride (in values), `tokens` of them, any number; queries [rows, dim].
  // out [rows, stride]: places from `tokens` up to the next multiple of 16 get 0.
  void (*exact_key_dots)(const Half* keys, size_t key_stride, size_t tokens, size_t dim, const float* queries,
                         size_t rows, float* out, size_t stride);

  // Online softmax. Scores become exp(score - max), 0 where masked; max, sum and rescale are updated.
  void (*softmax)(const SoftmaxBlock& block);

  // Weights for packed values: in [rows, stride] probabilities, of `tokens` each, times step_t, rounded to integers of
  // which a row's largest is kLargestWeight. out [rows, stride]: in the order that this set's value_sums takes. unit
  // [rows]: what one stands for; zeros [rows]: sum of weight * zero_t.
  void (*quantize_weights)(const float* in, size_t stride, size_t tokens, size_t rows, const RowScale* scales, int bits,
                           int16_t* out, float* unit, float* zeros);

  // Adds packed values: acc[row][c] += unit[row] * (sum_t w_t code_tc - zeros[row]). weights [rows, stride].
  void (*value_sums)(const uint8_t* tiles, int bits, size_t count, size_t dim, const int16_t* weights, size_t stride,
                     const float* unit, const float* zeros, size_t rows, float* acc);

  // Adds FP16 values: acc[row][c] += sum_t w_t value_tc. weights [rows, stride] floats.
  void (*exact_value_sums)(const Half* values, size_t value_stride, size_t tokens, size_t dim, const float* weights,
                           size_t stride, size_t rows, float* acc);
};

const AttendKernels& ScalarAttendKernels();

// Those that this CPU has, fastest first; the last is the scalar one.
const std::vector<const AttendKernels*>& AvailableAttendKernels();

// As SelectKernels, and by the same rules.
Result<const AttendKernels*> SelectAttendKernels();

}  // namespace qkvshare
