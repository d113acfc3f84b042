// What all sets of row kernels share: constants of the codecs, and what is done once a row.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "quant/row_scale.h"

namespace qkvshare {

inline constexpr float kSmallestRow = 1e-20f;  // far below what an FP16 row can hold

inline float QuantizeZeroRow(size_t dim, int bits, uint8_t* codes, RowScale* scale) {
  std::fill_n(codes, dim, static_cast<uint8_t>(1 << (bits - 1)));
  *scale = 0;
  return 0;
}

// The outermost value must get code 127, also where the scale is rounded up by 1/128: then its error is at most half a
// step, and what is dequantized has the same scale when it is quantized again. That holds for 127.4883 to 127.5.
inline constexpr float kOutermost8 = 127.495f;

// The search at 2 and 4 bits: these clip points on both grids, mid-rise first.
inline constexpr size_t kClipPoints = 14;
inline constexpr float kTightestClip = 0.35f;
inline constexpr float kClearlyMore = 1 + 0x1p-18f;  // of equal fits, which differ by rounding only, the first is taken

constexpr float ClipPoint(size_t i) {
  return kTightestClip + (1.0f - kTightestClip) / static_cast<float>(kClipPoints - 1) * static_cast<float>(i);
}

// The search in a metric: steps by the outermost level as a share of the row's largest value, then the best of them a
// little shorter and longer. Measured on keys of three models: within 2% of the cost that 52 steps leave.
struct ClipChoice {
  CodeGrid grid;
  float share;
};
struct ClipSearch {
  std::array<ClipChoice, 8> choices;
  float refinement;
};
constexpr ClipSearch MetricClips(int bits) {
  constexpr CodeGrid kRise = CodeGrid::kMidRise;
  constexpr CodeGrid kTread = CodeGrid::kMidTread;
  if (bits == 2) {
    return {{{{kRise, 0.48f},
              {kRise, 0.56f},
              {kRise, 0.64f},
              {kRise, 0.72f},
              {kRise, 0.80f},
              {kTread, 0.36f},
              {kTread, 0.42f},
              {kTread, 0.48f}}},
            0.05f};
  }
  return {{{{kRise, 0.82f},
            {kRise, 0.88f},
            {kRise, 0.94f},
            {kRise, 1.00f},
            {kTread, 0.76f},
            {kTread, 0.82f},
            {kTread, 0.88f},
            {kTread, 0.94f}}},
          0.03f};
}

// The highest level of a grid.
constexpr float OutermostLevel(CodeGrid grid, int bits) {
  return static_cast<float>((1 << bits) - 1) - ZeroCode(grid, bits);
}

// The least-squares fit x ~ dot / norm * (code - zero_code) of one clip point.
struct Fit {
  CodeGrid grid = CodeGrid::kMidRise;
  float inverse_step = 0;
  float dot = 0;
  float norm = 1;

  // The squared error is |x|^2 - gain.
  float gain() const { return dot * (dot / norm); }
};

}  // namespace qkvshare
