// Tiles: how the codes of up to 16 tokens of one KV head lie in memory (docs/card_format.md, "Tiles").
//
// Keys, 8 bits: groups of 4 channels; in a group each token has 4 bytes. 4 bits: groups of 8 channels; in a group each
// token has 4 bytes, byte j with channel j of the group in the low and channel 4 + j in the high nibble. A 64-byte load
// so covers all 16 tokens of a full tile.
// Values, 8 bits: a row of bytes a token. 4 bits: a row of dim / 2 bytes, byte j with channel j in the low and channel
// dim / 2 + j in the high nibble.
// A partial tile has the same shape with its number of tokens in place of 16: nothing is padded.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qkvshare {

inline constexpr size_t kTileTokens = 16;

enum class Side : uint8_t { kKeys = 0, kValues = 1 };

// "keys", "values".
const char* SideName(Side side);

constexpr size_t TileBytes(size_t tokens, size_t dim, int bits) { return tokens * dim * static_cast<size_t>(bits) / 8; }

// codes: [tokens, dim], one a byte; tile: TileBytes(tokens, dim, bits). bits in {4, 8}, tokens 1..16, dim % 8 == 0.
void PackTile(Side side, const uint8_t* codes, size_t tokens, size_t dim, int bits, uint8_t* tile);
void UnpackTile(Side side, const uint8_t* tile, size_t tokens, size_t dim, int bits, uint8_t* codes);

}  // namespace qkvshare
