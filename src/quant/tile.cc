#include "quant/tile.h"

#include <cstring>

namespace qkvshare {
namespace {

void PackNibbles(const uint8_t* low, const uint8_t* high, size_t n, uint8_t* out) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(low[i] | (high[i] << 4));
}

void UnpackNibbles(const uint8_t* in, size_t n, uint8_t* low, uint8_t* high) {
  for (size_t i = 0; i < n; ++i) {
    low[i] = in[i] & 15;
    high[i] = in[i] >> 4;
  }
}

}  // namespace

const char* SideName(Side side) { return side == Side::kKeys ? "keys" : "values"; }

void PackTile(Side side, const uint8_t* codes, size_t tokens, size_t dim, int bits, uint8_t* tile) {
  for (size_t t = 0; t < tokens; ++t) {
    const uint8_t* row = codes + t * dim;
    if (side == Side::kKeys && bits == 8) {
      for (size_t c = 0; c < dim; c += 4) std::memcpy(tile + (c / 4 * tokens + t) * 4, row + c, 4);
    } else if (side == Side::kKeys) {
      for (size_t c = 0; c < dim; c += 8) PackNibbles(row + c, row + c + 4, 4, tile + (c / 8 * tokens + t) * 4);
    } else if (bits == 8) {
      std::memcpy(tile + t * dim, row, dim);
    } else {
      PackNibbles(row, row + dim / 2, dim / 2, tile + t * dim / 2);
    }
  }
}

void UnpackTile(Side side, const uint8_t* tile, size_t tokens, size_t dim, int bits, uint8_t* codes) {
  for (size_t t = 0; t < tokens; ++t) {
    uint8_t* row = codes + t * dim;
    if (side == Side::kKeys && bits == 8) {
      for (size_t c = 0; c < dim; c += 4) std::memcpy(row + c, tile + (c / 4 * tokens + t) * 4, 4);
    } else if (side == Side::kKeys) {
      for (size_t c = 0; c < dim; c += 8) UnpackNibbles(tile + (c / 8 * tokens + t) * 4, 4, row + c, row + c + 4);
    } else if (bits == 8) {
      std::memcpy(row, tile + t * dim, dim);
    } else {
      UnpackNibbles(tile + t * dim / 2, dim / 2, row, row + dim / 2);
    }
  }
}

}  // namespace qkvshare
