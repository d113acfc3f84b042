#include "quant/round_tile_scalar.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "quant/float4.h"
#include "quant/kernels.h"
#include "quant/kernels_common.h"
#include "quant/tile.h"

namespace qkvshare {
namespace {

using Int4 = int32_t __attribute__((vector_size(16)));

// 16 floats, as four times four.
struct Lanes {
  std::array<Float4, 4> part;

  static Lanes Load(const float* x) { return {{Load4(x), Load4(x + 4), Load4(x + 8), Load4(x + 12)}}; }
  static Lanes All(float x) { return {{Float4{} + x, Float4{} + x, Float4{} + x, Float4{} + x}}; }
  void Store(float* x) const {
    for (size_t i = 0; i < part.size(); ++i) Store4(part[i], x + 4 * i);
  }
};

template <class Function>
Lanes Map(const Function& function) {
  return {{function(0), function(1), function(2), function(3)}};
}

Lanes operator+(Lanes a, Lanes b) {
  return Map([&](size_t i) { return a.part[i] + b.part[i]; });
}
Lanes operator-(Lanes a, Lanes b) {
  return Map([&](size_t i) { return a.part[i] - b.part[i]; });
}
Lanes operator*(Lanes a, Lanes b) {
  return Map([&](size_t i) { return a.part[i] * b.part[i]; });
}
Lanes operator/(Lanes a, Lanes b) {
  return Map([&](size_t i) { return a.part[i] / b.part[i]; });
}
Lanes Greater(Lanes a, Lanes b, Lanes yes, Lanes no) {
  return Map([&](size_t i) { return a.part[i] > b.part[i] ? yes.part[i] : no.part[i]; });
}
Lanes Max(Lanes a, Lanes b) { return Greater(a, b, a, b); }
Lanes Min(Lanes a, Lanes b) { return Greater(b, a, a, b); }
Lanes Trunc(Lanes a) {
  return Map([&](size_t i) { return __builtin_convertvector(__builtin_convertvector(a.part[i], Int4), Float4); });
}
Lanes Sqrt(Lanes a) {
  return Map([&](size_t i) {
    Float4 root = a.part[i];
    for (int k = 0; k < 4; ++k) root[k] = std::sqrt(root[k]);
    return root;
  });
}

#define QKV_LANES_ATTR
#include "quant/round_tile_inl.h"

}  // namespace

void RoundTileScalar(const ErrorMetric& metric, const float* x, size_t rows, int bits, uint8_t* codes, RowScale* scales,
                     float* costs) {
  RoundTile(metric, x, rows, bits, codes, scales, costs);
}

}  // namespace qkvshare
