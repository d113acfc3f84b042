// Sums of packed values. Included once for each target, by attend_simd.cc.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace qkvshare {
namespace HWY_NAMESPACE {
namespace {

struct ValueTiles {
  const uint8_t* tiles;
  size_t group_bytes, groups, dim;  // of 32 / bits tokens
  const int16_t* weights;
  size_t stride;
  const float* unit;
  const float* zeros;
  float* acc;
  size_t ahead;  // as in KeyTiles
};

// Adds kVectors vectors of channels from `channel` on, of kRows rows.
template <class Dots, int kBits, size_t kRows, size_t kVectors, class D8>
HWY_INLINE void ValueBlock(D8 d8, const ValueTiles values, size_t row, size_t channel) {
  constexpr size_t kChannels = hn::MaxLanes(D8()) / 4;
  typename Dots::template ValueSum<D8> sums[kRows][kVectors];
  const uint8_t* in = values.tiles + channel * 4;
  const int16_t* weights = values.weights + row * values.stride;
  for (size_t group = 0; group < values.groups; ++group, in += values.group_bytes, weights += 32 / kBits) {
    Vec<D8> packed[kVectors];
    for (size_t i = 0; i < kVectors; ++i) {
      packed[i] = hn::LoadU(d8, in + i * hn::MaxLanes(d8));
      FetchAhead(in + i * hn::MaxLanes(d8), 4 * values.group_bytes, values.ahead);
    }
    const auto step = [&](auto index) HWY_ATTR {
      typename Dots::template ValueCodes<D8> codes[kVectors];
      for (size_t i = 0; i < kVectors; ++i) {
        UnpackInTurn<kBits>(packed[i]);
        codes[i] = Dots::template UnpackValues<kBits, index>(packed[i]);
      }
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t i = 0; i < kVectors; ++i) sums[r][i].Add(codes[i], weights + r * values.stride + index * 4);
      }
    };
    ForIndices<8 / kBits>(step);
  }
  const hn::Repartition<float, D8> df;
  for (size_t r = 0; r < kRows; ++r) {
    const auto unit = hn::Set(df, values.unit[row + r]);
    const auto zeros = hn::Set(df, values.zeros[row + r]);
    for (size_t i = 0; i < kVectors; ++i) {
      float* acc = values.acc + (row + r) * values.dim + channel + i * kChannels;
      const auto sum = hn::Sub(hn::ConvertTo(df, sums[r][i].Total()), zeros);
      hn::StoreU(hn::MulAdd(unit, sum, hn::LoadU(df, acc)), df, acc);
    }
  }
}

template <class Dots, int kBits, size_t kRows>
HWY_INLINE void ValueRows(const ValueTiles& values, size_t row) {
  constexpr size_t kChannels = hn::MaxLanes(Bytes()) / 4;
  constexpr size_t kVectors = std::clamp<size_t>(Dots::kValueSums / kRows, 1, 4);
  size_t channel = 0;
  for (; channel + kVectors * kChannels <= values.dim; channel += kVectors * kChannels) {
    ValueBlock<Dots, kBits, kRows, kVectors>(Bytes(), values, row, channel);
  }
  if constexpr (kVectors > 1) {
    for (; channel + kChannels <= values.dim; channel += kChannels) {
      ValueBlock<Dots, kBits, kRows, 1>(Bytes(), values, row, channel);
    }
  }
  if constexpr (kChannels > 8) {
    if (channel < values.dim) ValueBlock<Dots, kBits, kRows, 1>(hn::CappedTag<uint8_t, 32>(), values, row, channel);
  }
}

template <class Dots, int kBits>
void ValueSumsOf(const ValueTiles& values, size_t rows) {
  ForRowBlocks<Dots::kValueRows>(rows, [&](size_t row, auto n) HWY_ATTR { ValueRows<Dots, kBits, n>(values, row); });
}

template <class Dots>
void ValueSums(const uint8_t* tiles, int bits, size_t count, size_t dim, const int16_t* weights, size_t stride,
               const float* unit, const float* zeros, size_t rows, float* acc) {
  const size_t groups = kTileTokens * static_cast<size_t>(bits) / 32;  // in a tile
  const ValueTiles values = {
      tiles, TileBytes(kTileTokens, dim, bits) / groups, count * groups, dim, weights, stride, unit, zeros,
      acc,   count * TileBytes(kTileTokens, dim, bits)};
  switch (bits) {
    case 2: return ValueSumsOf<Dots, 2>(values, rows);
    case 4: return ValueSumsOf<Dots, 4>(values, rows);
    default: return ValueSumsOf<Dots, 8>(values, rows);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace qkvshare
HWY_AFTER_NAMESPACE();
