#include "quant/tile.h"

#include <algorithm>

namespace qkvshare {
namespace {

// Where a row's codes lie: `runs` runs of bytes, each holding `bytes * 8 / bits` channels in turn.
struct RowPlaces {
  size_t runs, bytes, stride;

  RowPlaces(Side side, size_t tokens, size_t dim, int bits)
      : runs(side == Side::kKeys ? RowBytes(dim, bits) / 4 : 1),
        bytes(side == Side::kKeys ? 4 : RowBytes(dim, bits)),
        stride(bytes * tokens) {}
};

}  // namespace

const char* SideName(Side side) { return side == Side::kKeys ? "keys" : "values"; }

void PackTile(Side side, const uint8_t* codes, size_t tokens, size_t dim, int bits, uint8_t* tile) {
  const RowPlaces places(side, tokens, dim, bits);
  std::fill_n(tile, TileBytes(tokens, dim, bits), uint8_t{0});
  for (size_t t = 0; t < tokens; ++t) {
    const uint8_t* row = codes + t * dim;
    size_t c = 0;
    for (size_t run = 0; run < places.runs; ++run) {
      uint8_t* out = tile + run * places.stride + t * places.bytes;
      for (int shift = 0; shift < 8 && c < dim; shift += bits) {
        const size_t n = std::min(places.bytes, dim - c);
        for (size_t j = 0; j < n; ++j) out[j] = static_cast<uint8_t>(out[j] | (row[c + j] << shift));
        c += n;
      }
    }
  }
}

void UnpackTile(Side side, const uint8_t* tile, size_t tokens, size_t dim, int bits, uint8_t* codes) {
  const RowPlaces places(side, tokens, dim, bits);
  const int mask = (1 << bits) - 1;
  for (size_t t = 0; t < tokens; ++t) {
    uint8_t* row = codes + t * dim;
    size_t c = 0;
    for (size_t run = 0; run < places.runs; ++run) {
      const uint8_t* in = tile + run * places.stride + t * places.bytes;
      for (int shift = 0; shift < 8 && c < dim; shift += bits) {
        const size_t n = std::min(places.bytes, dim - c);
        for (size_t j = 0; j < n; ++j) row[c + j] = static_cast<uint8_t>((in[j] >> shift) & mask);
        c += n;
      }
    }
  }
}

}  // namespace qkvshare
