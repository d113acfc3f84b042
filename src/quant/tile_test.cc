#include "quant/tile.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace qkvshare {
namespace {

using Codes = std::vector<uint8_t>;

// Byte and nibble of one code, as docs/card_format.md ("Tiles") has it.
struct Place {
  size_t byte;
  bool high;
};
Place Find(Side side, int bits, size_t tokens, size_t dim, size_t token, size_t channel) {
  if (side == Side::kKeys && bits == 8) return {(channel / 4 * tokens + token) * 4 + channel % 4, false};
  if (side == Side::kKeys) return {(channel / 8 * tokens + token) * 4 + channel % 4, channel % 8 >= 4};
  if (bits == 8) return {token * dim + channel, false};
  return {token * (dim / 2) + channel % (dim / 2), channel >= dim / 2};
}

TEST(TileTest, EveryCodeLiesWhereTheFormatSaysAndComesBack) {
  std::mt19937 random(3);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (const int bits : {4, 8}) {
      for (const size_t dim : {8u, 64u, 72u, 80u, 96u, 128u, 256u}) {
        for (size_t tokens = 1; tokens <= kTileTokens; ++tokens) {
          Codes codes(tokens * dim);
          for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % (1u << bits));
          Codes tile(TileBytes(tokens, dim, bits) + 1, 0xA5);  // one byte more, which must stay
          PackTile(side, codes.data(), tokens, dim, bits, tile.data());
          EXPECT_EQ(tile.back(), 0xA5);
          for (size_t token = 0; token < tokens; ++token) {
            for (size_t channel = 0; channel < dim; ++channel) {
              const Place place = Find(side, bits, tokens, dim, token, channel);
              const int stored = bits == 8 ? tile[place.byte] : tile[place.byte] >> (place.high ? 4 : 0) & 15;
              ASSERT_EQ(stored, codes[token * dim + channel])
                  << SideName(side) << " " << bits << " bits, dim " << dim << ", token " << token << " of " << tokens;
            }
          }
          Codes back(tokens * dim + 1, 0xA5);
          UnpackTile(side, tile.data(), tokens, dim, bits, back.data());
          EXPECT_EQ(back.back(), 0xA5);
          back.pop_back();
          ASSERT_EQ(back, codes);
        }
      }
    }
  }
}

// Two tokens of 8 channels, as literal bytes: token 0 has codes 0 to 7, token 1 has 8 to 15.
TEST(TileTest, GoldenBytes) {
  Codes codes;
  for (uint8_t code = 0; code < 16; ++code) codes.push_back(code);
  const auto pack = [&](Side side, int bits) {
    Codes tile(TileBytes(2, 8, bits));
    PackTile(side, codes.data(), 2, 8, bits, tile.data());
    return tile;
  };
  EXPECT_EQ(pack(Side::kKeys, 8), (Codes{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(pack(Side::kKeys, 4), (Codes{0x40, 0x51, 0x62, 0x73, 0xC8, 0xD9, 0xEA, 0xFB}));
  EXPECT_EQ(pack(Side::kValues, 8), codes);
  EXPECT_EQ(pack(Side::kValues, 4), (Codes{0x40, 0x51, 0x62, 0x73, 0xC8, 0xD9, 0xEA, 0xFB}));
  // Where keys and values differ at 4 bits: 16 channels of one token.
  Codes keys(8);
  Codes values(8);
  PackTile(Side::kKeys, codes.data(), 1, 16, 4, keys.data());
  PackTile(Side::kValues, codes.data(), 1, 16, 4, values.data());
  EXPECT_EQ(keys, (Codes{0x40, 0x51, 0x62, 0x73, 0xC8, 0xD9, 0xEA, 0xFB}));
  EXPECT_EQ(values, (Codes{0x80, 0x91, 0xA2, 0xB3, 0xC4, 0xD5, 0xE6, 0xF7}));
}

}  // namespace
}  // namespace qkvshare
