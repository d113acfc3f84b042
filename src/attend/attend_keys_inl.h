// Scores of packed keys. Included once for each target, by attend_simd.cc.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace qkvshare {
namespace HWY_NAMESPACE {
namespace {

struct KeyTiles {
  const uint8_t* tiles;
  size_t tile_bytes, groups, count;
  const RowScale* scales;
  PackedQueries queries;
  float* out;
  size_t stride;
  size_t ahead;  // FetchAhead's `far`
};

// What turns sums of a row into scores: score = scale * step * sum - offset * zero * step + bias.
template <size_t kRows>
struct QueryScales {
  float scale[kRows], offset[kRows], bias[kRows];

  HWY_INLINE QueryScales(const PackedQueries& queries, size_t row) {
    for (size_t r = 0; r < kRows; ++r) {
      scale[r] = queries.scale[row + r];
      offset[r] = scale[r] * static_cast<float>(queries.sum[row + r]);
      bias[r] = queries.bias[row + r];
    }
  }
};

// Keys that share a vector are a column: a tile has one of 16 keys, or several of fewer.
inline constexpr size_t kLineBytes = kTileTokens * 4;
inline constexpr size_t kKeysInColumn = hn::MaxLanes(Bytes()) / 4;
inline constexpr size_t kColumnsInTile = kTileTokens / kKeysInColumn;

// The same of the keys of a column.
struct KeyScales {
  Vec<Floats> step, zero_step;

  HWY_INLINE KeyScales(const RowScale* scales, int bits) {
    const IntsOf<Bytes> d32;
    const Floats df;
    const auto scale = hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(hn::Rebind<uint16_t, Floats>(), scales)));
    const auto sign = hn::BroadcastSignBit(scale);
    step = hn::Abs(hn::BitCast(df, scale));
    const auto rise = hn::Set(df, ZeroCode(CodeGrid::kMidRise, bits));
    const auto zero = hn::Add(rise, hn::And(hn::BitCast(df, sign), hn::Set(df, 0.5f)));
    zero_step = hn::Mul(zero, step);
  }
};

// Scores of kColumns columns and kRows rows.
template <class Dots, int kBits, size_t kRows, size_t kColumns>
HWY_INLINE void KeyBlock(const KeyTiles keys, const QueryScales<kRows>& rows, size_t row, size_t column) {
  const Bytes d8;
  const Floats df;
  const uint8_t* in[kColumns];
  for (size_t i = 0; i < kColumns; ++i) {
    in[i] =
        keys.tiles + (column + i) / kColumnsInTile * keys.tile_bytes + (column + i) % kColumnsInTile * hn::MaxLanes(d8);
  }
  using Sum = typename Dots::template KeySum<kBits>;
  Sum sums[kRows][kColumns];
  const size_t query_stride = keys.queries.stride;
  const int8_t* query = keys.queries.codes + row * query_stride;
  for (size_t group = 0; group < keys.groups;) {
    const size_t end = std::min(keys.groups, group + Sum::kGroups);
    for (; group < end; ++group) {
      Vec<Bytes> packed[kColumns];
      for (size_t i = 0; i < kColumns; ++i) {
        packed[i] = hn::LoadU(d8, in[i] + group * kLineBytes);
        FetchAhead(in[i] + group * kLineBytes, 2 * keys.tile_bytes, keys.ahead);
      }
      const auto step = [&](auto index) HWY_ATTR {
        Vec<Bytes> codes[kColumns];
        for (size_t i = 0; i < kColumns; ++i) {
          UnpackInTurn<kBits>(packed[i]);
          codes[i] = Unpacked<kBits, index>(packed[i]);
        }
        for (size_t r = 0; r < kRows; ++r) {
          const auto four = Repeated(d8, query + r * query_stride + group * (32 / kBits) + index * 4);
          for (size_t i = 0; i < kColumns; ++i) sums[r][i].Add(codes[i], four);
        }
      };
      ForIndices<8 / kBits>(step);
    }
    for (auto& row_sums : sums) {
      for (Sum& sum : row_sums) sum.Widen();
    }
  }
  const size_t token = column * kKeysInColumn;
  float* out = keys.out + row * keys.stride + token;
  for (size_t i = 0; i < kColumns; ++i, out += kKeysInColumn) {
    const KeyScales scales(keys.scales + token + i * kKeysInColumn, kBits);
    for (size_t r = 0; r < kRows; ++r) {
      const auto offset = hn::NegMulAdd(scales.zero_step, hn::Set(df, rows.offset[r]), hn::Set(df, rows.bias[r]));
      const auto product = hn::Mul(hn::ConvertTo(df, sums[r][i].Total()), scales.step);
      hn::StoreU(hn::MulAdd(product, hn::Set(df, rows.scale[r]), offset), df, out + r * keys.stride);
    }
  }
}

template <class Dots, int kBits, size_t kRows>
HWY_INLINE void KeyRows(const KeyTiles& keys, size_t row) {
  constexpr size_t kAtOnce = std::clamp<size_t>(Dots::template kKeySums<kBits> / kRows, 1, 4);
  const QueryScales<kRows> rows(keys.queries, row);
  const size_t columns = keys.count * kColumnsInTile;
  size_t column = 0;
  for (; column + kAtOnce <= columns; column += kAtOnce) KeyBlock<Dots, kBits, kRows, kAtOnce>(keys, rows, row, column);
  if constexpr (kAtOnce > 1) {
    for (; column < columns; ++column) KeyBlock<Dots, kBits, kRows, 1>(keys, rows, row, column);
  }
}

template <class Dots, int kBits>
void KeyDotsOf(const KeyTiles& keys, size_t rows) {
  ForRowBlocks<Dots::template kKeyRows<kBits>>(
      rows, [&](size_t row, auto n) HWY_ATTR { KeyRows<Dots, kBits, n>(keys, row); });
}

template <class Dots>
void KeyDots(const uint8_t* tiles, int bits, size_t count, size_t dim, const RowScale* scales,
             const PackedQueries& queries, size_t rows, float* out, size_t stride) {
  const size_t tile_bytes = TileBytes(kTileTokens, dim, bits);
  const KeyTiles keys = {tiles, tile_bytes, RowBytes(dim, bits) / 4, count, scales, queries,
                         out,   stride,     count * tile_bytes};
  switch (bits) {
    case 2: return KeyDotsOf<Dots, 2>(keys, rows);
    case 4: return KeyDotsOf<Dots, 4>(keys, rows);
    default: return KeyDotsOf<Dots, 8>(keys, rows);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace qkvshare
HWY_AFTER_NAMESPACE();
