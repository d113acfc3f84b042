// Tiles: how the codes of up to 16 tokens of one KV head lie in memory (docs/card_format.md, "Tiles").
//
// Codes of b bits: a byte holds 8 / b of them, which a load unpacks to whole steps of a dot product: four channels of a
// key, or four tokens of a channel of values.
//
// Keys: groups of 32 / b channels; in a group each token has 4 bytes. Byte j has, from its low bits up, channels j,
// 4 + j, 8 + j and so on of the group. A 64-byte load so covers all 16 tokens of a full tile. Values of a full tile:
// the same with tokens and channels in each other's place: groups of 32 / b tokens, in a group each channel has 4
// bytes. At 2 bits rows of both sides are padded to a multiple of 16 channels, so that groups are whole: with zeros,
// unread.
//
// No token of a partial tile is padded. Its keys have the same shape with its number of tokens in place of 16, its
// values lie row by row, n = dim * b / 8 bytes each: byte j has, from its low bits up, channels j, n + j, 2 * n + j and
// so on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace qkvshare {

inline constexpr size_t kTileTokens = 16;

enum class Side : uint8_t { kKeys = 0, kValues = 1 };

// "keys", "values".
const char* SideName(Side side);

// Bytes of the codes (16 bits: of the values) of one row of a tile.
constexpr size_t RowBytes(size_t dim, int bits) {
  return (bits == 2 ? AlignUp(dim, 16) : dim) * static_cast<size_t>(bits) / 8;
}
constexpr size_t TileBytes(size_t tokens, size_t dim, int bits) { return tokens * RowBytes(dim, bits); }

// codes: [tokens, dim], one a byte; tile: TileBytes(tokens, dim, bits). bits in {2, 4, 8}, tokens 1..16, dim % 8 == 0.
void PackTile(Side side, const uint8_t* codes, size_t tokens, size_t dim, int bits, uint8_t* tile);
void UnpackTile(Side side, const uint8_t* tile, size_t tokens, size_t dim, int bits, uint8_t* codes);

}  // namespace qkvshare
