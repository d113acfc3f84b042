#include "quant/tile.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace qkvshare {
namespace {

// 16 bytes at a time, by the vector extensions that GCC and clang share: the baseline of every CPU has them.
using Bytes = uint8_t __attribute__((vector_size(16)));
using Words = uint32_t __attribute__((vector_size(16)));

template <typename Vector>
Vector Load(const uint8_t* in) {
  Vector v;
  std::memcpy(&v, in, sizeof v);
  return v;
}

template <typename Vector>
void Store(Vector v, uint8_t* out) {
  std::memcpy(out, &v, sizeof v);
}

// Where a row's codes lie: `runs` runs of bytes, each holding `bytes * 8 / bits` channels in turn.
struct RowPlaces {
  size_t runs, bytes, stride;

  RowPlaces(Side side, size_t tokens, size_t dim, int bits)
      : runs(side == Side::kKeys ? RowBytes(dim, bits) / 4 : 1),
        bytes(side == Side::kKeys ? 4 : RowBytes(dim, bits)),
        stride(bytes * tokens) {}
};

// A row, code by code: keys, and values of a partial tile. Both of these define the layout; what follows does the same
// for most rows, faster.
void PackRow(const uint8_t* codes, const RowPlaces& places, size_t dim, int bits, uint8_t* first) {
  size_t c = 0;
  for (size_t run = 0; run < places.runs; ++run) {
    uint8_t* out = first + run * places.stride;
    std::fill_n(out, places.bytes, uint8_t{0});
    for (int shift = 0; shift < 8 && c < dim; shift += bits) {
      const size_t n = std::min(places.bytes, dim - c);
      for (size_t j = 0; j < n; ++j) out[j] = static_cast<uint8_t>(out[j] | (codes[c + j] << shift));
      c += n;
    }
  }
}

void UnpackRow(const uint8_t* first, const RowPlaces& places, size_t dim, int bits, uint8_t* codes) {
  const int mask = (1 << bits) - 1;
  size_t c = 0;
  for (size_t run = 0; run < places.runs; ++run) {
    const uint8_t* in = first + run * places.stride;
    for (int shift = 0; shift < 8 && c < dim; shift += bits) {
      const size_t n = std::min(places.bytes, dim - c);
      for (size_t j = 0; j < n; ++j) codes[c + j] = static_cast<uint8_t>((in[j] >> shift) & mask);
      c += n;
    }
  }
}

// ---- Keys: four tokens and 16 channels at once, as a square of 4 x 4 words of four channels ----

using Square = std::array<Words, 4>;

Square Transposed(const Square& v) {
  const Words a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
  const Words b = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
  const Words c = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
  const Words d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
  return {__builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
          __builtin_shufflevector(b, d, 0, 1, 4, 5), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
}

template <int kBits>
inline constexpr uint32_t kMask = 0x01010101u * ((1u << kBits) - 1);

// tile: at the first of the four tokens, as in RowPlaces. dim: multiple of 16.
template <int kBits>
void PackFourKeys(const uint8_t* codes, size_t dim, size_t stride, uint8_t* tile) {
  constexpr size_t kInByte = 8 / kBits;
  for (size_t c = 0; c < dim; c += 16) {
    const Square words = Transposed({Load<Words>(codes + c), Load<Words>(codes + dim + c),
                                     Load<Words>(codes + 2 * dim + c), Load<Words>(codes + 3 * dim + c)});
    for (size_t i = 0; i < 4; i += kInByte) {
      Words packed = words[i];
      for (size_t j = 1; j < kInByte; ++j) packed |= words[i + j] << static_cast<uint32_t>(j * kBits);
      Store(packed, tile);
      tile += stride;
    }
  }
}

template <int kBits>
void UnpackFourKeys(const uint8_t* tile, size_t dim, size_t stride, uint8_t* codes) {
  constexpr size_t kInByte = 8 / kBits;
  for (size_t c = 0; c < dim; c += 16) {
    Square words;
    for (size_t i = 0; i < 4; i += kInByte) {
      const Words packed = Load<Words>(tile);
      for (size_t j = 0; j < kInByte; ++j) words[i + j] = packed >> static_cast<uint32_t>(j * kBits) & kMask<kBits>;
      tile += stride;
    }
    words = Transposed(words);
    for (size_t i = 0; i < 4; ++i) Store(words[i], codes + i * dim + c);
  }
}

// ---- Values of a full tile: four tokens of 16 channels at once ----

using Rows = std::array<Bytes, 4>;  // 16 channels of four tokens

// Four bytes a channel, one a token.
Rows Interleaved(const Rows& v) {
  const auto low = [](Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  };
  const auto high = [](Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  };
  const Bytes even_low = low(v[0], v[2]);
  const Bytes even_high = high(v[0], v[2]);
  const Bytes odd_low = low(v[1], v[3]);
  const Bytes odd_high = high(v[1], v[3]);
  return {low(even_low, odd_low), high(even_low, odd_low), low(even_high, odd_high), high(even_high, odd_high)};
}

// The inverse.
Rows Deinterleaved(const Rows& v) {
  const auto even = [](Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  };
  const auto odd = [](Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  };
  const Bytes even_low = even(v[0], v[1]);
  const Bytes even_high = even(v[2], v[3]);
  const Bytes odd_low = odd(v[0], v[1]);
  const Bytes odd_high = odd(v[2], v[3]);
  return {even(even_low, even_high), even(odd_low, odd_high), odd(even_low, even_high), odd(odd_low, odd_high)};
}

Rows LoadRows(const uint8_t* in, size_t stride) {
  return {Load<Bytes>(in), Load<Bytes>(in + stride), Load<Bytes>(in + 2 * stride), Load<Bytes>(in + 3 * stride)};
}

void StoreRows(const Rows& v, uint8_t* out, size_t stride) {
  for (size_t i = 0; i < v.size(); ++i) Store(v[i], out + i * stride);
}

// Channel by channel, from channel c on: this defines the layout.
template <int kBits>
void PackChannels(const uint8_t* codes, size_t c, size_t dim, uint8_t* group) {
  for (; c < dim; ++c) {
    for (size_t j = 0; j < 4; ++j) {
      int byte = 0;
      for (size_t i = 0; i < 8 / kBits; ++i) byte |= codes[(4 * i + j) * dim + c] << (i * kBits);
      group[c * 4 + j] = static_cast<uint8_t>(byte);
    }
  }
}

template <int kBits>
void UnpackChannels(const uint8_t* group, size_t c, size_t dim, uint8_t* codes) {
  constexpr int kCode = (1 << kBits) - 1;
  for (; c < dim; ++c) {
    for (size_t t = 0; t < 32 / kBits; ++t) {
      codes[t * dim + c] = static_cast<uint8_t>(group[c * 4 + t % 4] >> (t / 4 * kBits) & kCode);
    }
  }
}

template <int kBits>
void PackValueTile(const uint8_t* codes, size_t dim, uint8_t* tile) {
  constexpr size_t kGroup = 32 / kBits;
  for (size_t t = 0; t < kTileTokens; t += kGroup, tile += dim * 4) {
    const uint8_t* rows = codes + t * dim;
    size_t c = 0;
    for (; c + 16 <= dim; c += 16) {
      Rows packed = Interleaved(LoadRows(rows + c, dim));
      for (size_t i = 1; i < 8 / kBits; ++i) {
        const Rows next = Interleaved(LoadRows(rows + 4 * i * dim + c, dim));
        for (size_t j = 0; j < 4; ++j) packed[j] |= next[j] << static_cast<uint8_t>(i * kBits);
      }
      StoreRows(packed, tile + c * 4, 16);
    }
    PackChannels<kBits>(rows, c, dim, tile);
  }
}

template <int kBits>
void UnpackValueTile(const uint8_t* tile, size_t dim, uint8_t* codes) {
  constexpr size_t kGroup = 32 / kBits;
  constexpr auto kCode = static_cast<uint8_t>((1 << kBits) - 1);
  for (size_t t = 0; t < kTileTokens; t += kGroup, tile += dim * 4) {
    uint8_t* rows = codes + t * dim;
    size_t c = 0;
    for (; c + 16 <= dim; c += 16) {
      const Rows packed = LoadRows(tile + c * 4, 16);
      for (size_t i = 0; i < 8 / kBits; ++i) {
        Rows four;
        for (size_t j = 0; j < 4; ++j) four[j] = packed[j] >> static_cast<uint8_t>(i * kBits) & kCode;
        StoreRows(Deinterleaved(four), rows + 4 * i * dim + c, dim);
      }
    }
    UnpackChannels<kBits>(tile, c, dim, rows);
  }
}

// Both return the number of rows that they did; the others are done code by code.
template <int kBits>
size_t PackRows(Side side, const uint8_t* codes, size_t tokens, size_t dim, const RowPlaces& places, uint8_t* tile) {
  if (side == Side::kValues && tokens == kTileTokens) {
    PackValueTile<kBits>(codes, dim, tile);
    std::fill(tile + tokens * dim * kBits / 8, tile + TileBytes(tokens, dim, kBits), uint8_t{0});
    return tokens;
  }
  if (side == Side::kValues || dim % 16 != 0) return 0;
  const size_t fours = tokens / 4 * 4;
  for (size_t t = 0; t < fours; t += 4) PackFourKeys<kBits>(codes + t * dim, dim, places.stride, tile + t * 4);
  return fours;
}

template <int kBits>
size_t UnpackRows(Side side, const uint8_t* tile, size_t tokens, size_t dim, const RowPlaces& places, uint8_t* codes) {
  if (side == Side::kValues && tokens == kTileTokens) {
    UnpackValueTile<kBits>(tile, dim, codes);
    return tokens;
  }
  if (side == Side::kValues || dim % 16 != 0) return 0;
  const size_t fours = tokens / 4 * 4;
  for (size_t t = 0; t < fours; t += 4) UnpackFourKeys<kBits>(tile + t * 4, dim, places.stride, codes + t * dim);
  return fours;
}

}  // namespace

const char* SideName(Side side) { return side == Side::kKeys ? "keys" : "values"; }

void PackTile(Side side, const uint8_t* codes, size_t tokens, size_t dim, int bits, uint8_t* tile) {
  const RowPlaces places(side, tokens, dim, bits);
  const auto pack = bits == 2 ? PackRows<2> : bits == 4 ? PackRows<4> : PackRows<8>;
  for (size_t t = pack(side, codes, tokens, dim, places, tile); t < tokens; ++t) {
    PackRow(codes + t * dim, places, dim, bits, tile + t * places.bytes);
  }
}

void UnpackTile(Side side, const uint8_t* tile, size_t tokens, size_t dim, int bits, uint8_t* codes) {
  const RowPlaces places(side, tokens, dim, bits);
  const auto unpack = bits == 2 ? UnpackRows<2> : bits == 4 ? UnpackRows<4> : UnpackRows<8>;
  for (size_t t = unpack(side, tile, tokens, dim, places, codes); t < tokens; ++t) {
    UnpackRow(tile + t * places.bytes, places, dim, bits, codes + t * dim);
  }
}

}  // namespace qkvshare
