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

// Any row, code by code. Both of these define the layout; what follows does the same for most rows, faster.
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

// ---- Values: 16 bytes of a row at once ----

// dim: multiple of 128 / kBits.
template <int kBits>
void PackValues(const uint8_t* codes, size_t dim, uint8_t* out) {
  const size_t n = dim * kBits / 8;
  for (size_t j = 0; j < n; j += 16) {
    auto packed = Load<Bytes>(codes + j);
    for (size_t i = 1; i < 8 / kBits; ++i) packed |= Load<Bytes>(codes + i * n + j) << static_cast<uint8_t>(i * kBits);
    Store(packed, out + j);
  }
}

template <int kBits>
void UnpackValues(const uint8_t* in, size_t dim, uint8_t* codes) {
  constexpr auto kCode = static_cast<uint8_t>((1 << kBits) - 1);
  const size_t n = dim * kBits / 8;
  for (size_t j = 0; j < n; j += 16) {
    const auto packed = Load<Bytes>(in + j);
    for (size_t i = 0; i < 8 / kBits; ++i)
      Store<Bytes>(packed >> static_cast<uint8_t>(i * kBits) & kCode, codes + i * n + j);
  }
}

// Both return the number of rows that they did; the others are done code by code.
template <int kBits>
size_t PackRows(Side side, const uint8_t* codes, size_t tokens, size_t dim, const RowPlaces& places, uint8_t* tile) {
  if (dim % (side == Side::kKeys ? 16 : 128 / kBits) != 0) return 0;
  if (side == Side::kValues) {
    for (size_t t = 0; t < tokens; ++t) PackValues<kBits>(codes + t * dim, dim, tile + t * places.bytes);
    return tokens;
  }
  const size_t fours = tokens / 4 * 4;
  for (size_t t = 0; t < fours; t += 4) PackFourKeys<kBits>(codes + t * dim, dim, places.stride, tile + t * 4);
  return fours;
}

template <int kBits>
size_t UnpackRows(Side side, const uint8_t* tile, size_t tokens, size_t dim, const RowPlaces& places, uint8_t* codes) {
  if (dim % (side == Side::kKeys ? 16 : 128 / kBits) != 0) return 0;
  if (side == Side::kValues) {
    for (size_t t = 0; t < tokens; ++t) UnpackValues<kBits>(tile + t * places.bytes, dim, codes + t * dim);
    return tokens;
  }
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
