#include "policy/head_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/bytes.h"
#include "quant/float4.h"

namespace qkvshare {
namespace {

constexpr size_t kTile = 16;

// acc[r][j] += scale(r) * x[j] for 4 rows and 8 values: what stays in the registers of any instruction set.
struct Block4x8 {
  std::array<std::array<Float4, 2>, 4> sums{};

  template <typename Scale>
  void Add(const float* x, const Scale& scale) {
    const Float4 low = Load4(x);
    const Float4 high = Load4(x + 4);
    for (size_t r = 0; r < 4; ++r) {
      const Float4 factor = Float4{} + scale(r);
      sums[r][0] += factor * low;
      sums[r][1] += factor * high;
    }
  }
  void Load(const float* x, size_t stride) {
    for (size_t r = 0; r < 4; ++r) sums[r] = {Load4(x + r * stride), Load4(x + r * stride + 4)};
  }
  void Store(float* x, size_t stride) const {
    for (size_t r = 0; r < 4; ++r) {
      Store4(sums[r][0], x + r * stride);
      Store4(sums[r][1], x + r * stride + 4);
    }
  }
};

// exp(x) for x <= 0, at least exp(-87); that for NaN too.
float ExpNegative(float x) {
  constexpr float kLog2E = 1.44269504f;
  const float scaled = (x > -87.0f ? x : -87.0f) * kLog2E;
  const auto whole = static_cast<int32_t>(scaled - 0.5f);  // rounds, below zero
  const float part = scaled - static_cast<float>(whole);   // in [-0.5, 0.5]
  // 2^part: Taylor's series.
  float power = 1.5403530e-4f;
  power = power * part + 1.3333558e-3f;
  power = power * part + 9.6181291e-3f;
  power = power * part + 5.5504109e-2f;
  power = power * part + 2.4022651e-1f;
  power = power * part + 6.9314718e-1f;
  power = power * part + 1.0f;
  return power * std::bit_cast<float>((whole + 127) << 23);
}

}  // namespace

HeadMatrix::HeadMatrix(const HeadRows& head, const HeadRows& earlier)
    : tokens_(earlier.tokens + head.tokens),
      dim_(head.dim),
      padded_tokens_(AlignUp(tokens_, kTile)),
      rows_(padded_tokens_ * dim_),
      tiles_(padded_tokens_ * dim_) {
  for (size_t t = 0; t < tokens_; ++t) {
    const Half* row = t < earlier.tokens ? earlier.row(t) : head.row(t - earlier.tokens);
    float* tile = &tiles_[t / kTile * dim_ * kTile + t % kTile];
    for (size_t c = 0; c < dim_; ++c) rows_[t * dim_ + c] = tile[c * kTile] = HalfToFloat(row[c]);
  }
}

void HeadMatrix::Dot(const float* x, TokenRange range, float* out) const {
  for (size_t t = range.first / kTile * kTile; t < range.end; t += kTile) {
    const float* tile = &tiles_[t * dim_];
    for (size_t r = 0; r < kQueryBlock; r += 4) {
      for (size_t half = 0; half < kTile; half += 8) {
        Block4x8 block;
        const float* query = x + r * dim_;
        for (size_t c = 0; c < dim_; ++c) {
          block.Add(tile + c * kTile + half, [&](size_t i) { return query[i * dim_ + c]; });
        }
        block.Store(out + r * padded_tokens_ + t + half, padded_tokens_);
      }
    }
  }
}

void HeadMatrix::WeightedSum(const float* weight, TokenRange range, float* out) const {
  std::fill_n(out, kQueryBlock * dim_, 0.0f);
  for (size_t t = range.first; t < range.end; t += kTile) {
    const size_t end = std::min(t + kTile, range.end);
    for (size_t r = 0; r < kQueryBlock; r += 4) {
      const float* weights = weight + r * padded_tokens_;
      for (size_t c = 0; c < dim_; c += 8) {
        Block4x8 block;
        block.Load(out + r * dim_ + c, dim_);
        for (size_t i = t; i < end; ++i) {
          block.Add(&rows_[i * dim_ + c], [&](size_t j) { return weights[j * padded_tokens_ + i]; });
        }
        block.Store(out + r * dim_ + c, dim_);
      }
    }
  }
}

std::vector<float> HeadMatrix::SquaredNorms() const {
  std::vector<float> norms(padded_tokens_, 0.0f);
  for (size_t t = 0; t < padded_tokens_; t += kTile) {
    for (size_t c = 0; c < dim_; ++c) {
      const float* column = &tiles_[t * dim_ + c * kTile];
      for (size_t i = 0; i < kTile; ++i) norms[t + i] += column[i] * column[i];
    }
  }
  return norms;
}

float Softmax(std::span<float> scores) {
  const float top = *std::max_element(scores.begin(), scores.end());
  for (float& score : scores) score = ExpNegative(score - top);
  // 16 partial sums, as the row kernels have them: the same for any instruction set, and four at a time.
  std::array<Float4, 4> sums{};
  const size_t whole = scores.size() / 16 * 16;
  for (size_t t = 0; t < whole; t += 16) {
    for (size_t i = 0; i < 4; ++i) sums[i] += Load4(&scores[t + 4 * i]);
  }
  const Float4 sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  float total = (sum[0] + sum[2]) + (sum[1] + sum[3]);
  for (size_t t = whole; t < scores.size(); ++t) total += scores[t];
  const float share = 1.0f / total;
  for (float& score : scores) score *= share;
  return top + std::log(total);
}

}  // namespace qkvshare
