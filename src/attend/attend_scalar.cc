// What each kernel computes, in plain loops.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "attend/attend_kernels.h"
#include "quant/tile.h"

namespace qkvshare {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

struct TileCodes : std::array<uint8_t, kTileTokens * kMaxHeadDim> {};

float QuantizeQuery(const float* q, size_t dim, int8_t* codes, size_t stride, int32_t* sum) {
  float most = 0;
  for (size_t c = 0; c < dim; ++c) most = std::max(most, std::fabs(q[c]));
  std::fill(codes, codes + stride, int8_t{0});
  *sum = 0;
  if (!(most >= kSmallestQuantized)) return 0;
  const float inverse = 127.0f / most;
  for (size_t c = 0; c < dim; ++c) {
    codes[c] = static_cast<int8_t>(std::lrintf(q[c] * inverse));
    *sum += codes[c];
  }
  return most / 127.0f;
}

void KeyDots(const uint8_t* tiles, int bits, size_t count, size_t dim, const RowScale* scales,
             const PackedQueries& queries, size_t rows, float* out, size_t stride) {
  TileCodes codes;
  for (size_t tile = 0; tile < count; ++tile) {
    UnpackTile(Side::kKeys, tiles + tile * TileBytes(kTileTokens, dim, bits), kTileTokens, dim, bits, codes.data());
    for (size_t row = 0; row < rows; ++row) {
      const int8_t* q = queries.codes + row * queries.stride;
      for (size_t t = 0; t < kTileTokens; ++t) {
        const size_t place = tile * kTileTokens + t;
        int32_t dot = 0;
        for (size_t c = 0; c < dim; ++c) dot += q[c] * codes[t * dim + c];
        const float zero = ZeroCode(ScaleGrid(scales[place]), bits);
        out[row * stride + place] = queries.scale[row] * ScaleStep(scales[place]) *
                                        (static_cast<float>(dot) - zero * static_cast<float>(queries.sum[row])) +
                                    queries.bias[row];
      }
    }
  }
}

void ExactKeyDots(const Half* keys, size_t key_stride, size_t tokens, size_t dim, const float* queries, size_t rows,
                  float* out, size_t stride) {
  std::array<float, kMaxHeadDim> key;
  for (size_t t = 0; t < AlignUp(tokens, kTileTokens); ++t) {
    for (size_t c = 0; c < dim; ++c) key[c] = t < tokens ? HalfToFloat(keys[t * key_stride + c]) : 0.0f;
    for (size_t row = 0; row < rows; ++row) {
      float dot = 0;
      for (size_t c = 0; c < dim; ++c) dot += queries[row * dim + c] * key[c];
      out[row * stride + t] = dot;
    }
  }
}

// The row's scores as softmax sees them; returns the largest.
float MaskScores(const SoftmaxBlock& block, size_t row, float* scores) {
  const size_t first = block.first_visible == nullptr ? 0 : block.first_visible[row];
  float most = kMasked;
  for (size_t t = 0; t < block.tokens; ++t) {
    if (t < first || t >= block.end) {
      scores[t] = kMasked;
      continue;
    }
    if (block.softcap != 0) scores[t] = block.softcap * std::tanh(scores[t] / block.softcap);
    if (block.mask != nullptr) {
      const float mask = HalfToFloat(block.mask[row][t]);
      scores[t] = mask == kMasked ? kMasked : scores[t] + mask;  // whatever the score, NaN too
    }
    most = std::max(most, scores[t]);
  }
  return most;
}

void Softmax(const SoftmaxBlock& block) {
  for (size_t row = 0; row < block.rows; ++row) {
    float* scores = block.scores + row * block.stride;
    const float before = block.max[row];
    const float most = std::max(before, MaskScores(block, row, scores));
    block.rescale[row] = most > before ? std::exp(before - most) : 1.0f;
    float sum = 0;
    for (size_t t = 0; t < block.tokens; ++t) {
      scores[t] = scores[t] == kMasked ? 0.0f : std::exp(scores[t] - most);
      sum += scores[t];
    }
    block.max[row] = most;
    block.sum[row] = block.sum[row] * block.rescale[row] + sum;
  }
}

void QuantizeWeights(const float* in, size_t stride, size_t tokens, size_t rows, const RowScale* scales, int bits,
                     int16_t* out, float* unit, float* zeros) {
  for (size_t row = 0; row < rows; ++row, in += stride, out += stride) {
    float most = 0;
    for (size_t t = 0; t < tokens; ++t) most = std::max(most, in[t] * ScaleStep(scales[t]));
    unit[row] = 0;
    zeros[row] = 0;
    std::fill(out, out + tokens, int16_t{0});
    if (!(most >= kSmallestQuantized)) continue;
    unit[row] = most / static_cast<float>(kLargestWeight);
    const float inverse = static_cast<float>(kLargestWeight) / most;
    for (size_t t = 0; t < tokens; ++t) {
      out[t] = static_cast<int16_t>(std::lrintf(in[t] * ScaleStep(scales[t]) * inverse));
      zeros[row] += static_cast<float>(out[t]) * ZeroCode(ScaleGrid(scales[t]), bits);
    }
  }
}

void ValueSums(const uint8_t* tiles, int bits, size_t count, size_t dim, const int16_t* weights, size_t stride,
               const float* unit, const float* zeros, size_t rows, float* acc) {
  for (size_t row = 0; row < rows; ++row) {
    std::array<int32_t, kMaxHeadDim> sums{};
    TileCodes codes;
    for (size_t tile = 0; tile < count; ++tile) {
      UnpackTile(Side::kValues, tiles + tile * TileBytes(kTileTokens, dim, bits), kTileTokens, dim, bits, codes.data());
      for (size_t t = 0; t < kTileTokens; ++t) {
        const int32_t weight = weights[row * stride + tile * kTileTokens + t];
        for (size_t c = 0; c < dim; ++c) sums[c] += weight * codes[t * dim + c];
      }
    }
    for (size_t c = 0; c < dim; ++c) acc[row * dim + c] += unit[row] * (static_cast<float>(sums[c]) - zeros[row]);
  }
}

void ExactValueSums(const Half* values, size_t value_stride, size_t tokens, size_t dim, const float* weights,
                    size_t stride, size_t rows, float* acc) {
  std::array<float, kMaxHeadDim> value;
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < dim; ++c) value[c] = HalfToFloat(values[t * value_stride + c]);
    for (size_t row = 0; row < rows; ++row) {
      const float weight = weights[row * stride + t];
      for (size_t c = 0; c < dim; ++c) acc[row * dim + c] += weight * value[c];
    }
  }
}

}  // namespace

const AttendKernels& ScalarAttendKernels() {
  static constexpr AttendKernels kKernels = {"scalar", QuantizeQuery,   KeyDots,   ExactKeyDots,
                                             Softmax,  QuantizeWeights, ValueSums, ExactValueSums};
  return kKernels;
}

}  // namespace qkvshare
