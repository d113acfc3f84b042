#include "quant/tile.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace qkvshare {
namespace {

using Codes = std::vector<uint8_t>;

// Byte of one code and its lowest bit there, as docs/card_format.md ("Tiles") has it.
struct Place {
  size_t byte;
  size_t shift;
};
Place Find(Side side, size_t bits, size_t tokens, size_t dim, size_t token, size_t channel) {
  const size_t in_byte = 8 / bits;
  if (side == Side::kKeys) {
    const size_t group = 4 * in_byte;
    return {(channel / group * tokens + token) * 4 + channel % 4, channel % group / 4 * bits};
  }
  if (tokens == kTileTokens) {
    const size_t group = 4 * in_byte;
    return {(token / group * dim + channel) * 4 + token % 4, token % group / 4 * bits};
  }
  const size_t row = (bits == 2 ? (dim + 15) / 16 * 16 : dim) / in_byte;
  return {token * row + channel % row, channel / row * bits};
}

TEST(TileTest, EveryCodeLiesWhereTheFormatSaysAndComesBack) {
  std::mt19937 random(3);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (const int bits : {2, 4, 8}) {
      for (const size_t dim : {8u, 64u, 72u, 80u, 96u, 128u, 256u}) {
        for (size_t tokens = 1; tokens <= kTileTokens; ++tokens) {
          Codes codes(tokens * dim);
          for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % (1u << bits));
          Codes tile(TileBytes(tokens, dim, bits) + 1, 0xA5);  // one byte more, which must stay
          PackTile(side, codes.data(), tokens, dim, bits, tile.data());
          EXPECT_EQ(tile.back(), 0xA5);
          for (size_t token = 0; token < tokens; ++token) {
            for (size_t channel = 0; channel < dim; ++channel) {
              const Place place = Find(side, static_cast<size_t>(bits), tokens, dim, token, channel);
              ASSERT_EQ(tile[place.byte] >> place.shift & ((1 << bits) - 1), codes[token * dim + channel])
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
  for (uint8_t& code : codes) code &= 3;  // 0 1 2 3 0 1 2 3 for each token; padded to 16 channels
  EXPECT_EQ(pack(Side::kKeys, 2), (Codes{0x00, 0x05, 0x0A, 0x0F, 0x00, 0x05, 0x0A, 0x0F}));
  EXPECT_EQ(pack(Side::kValues, 2), (Codes{0x00, 0x05, 0x0A, 0x0F, 0x00, 0x05, 0x0A, 0x0F}));
  for (uint8_t code = 0; code < 16; ++code) codes[code] = code;
  // Where keys and values differ at 4 bits: 16 channels of one token.
  Codes keys(8);
  Codes values(8);
  PackTile(Side::kKeys, codes.data(), 1, 16, 4, keys.data());
  PackTile(Side::kValues, codes.data(), 1, 16, 4, values.data());
  EXPECT_EQ(keys, (Codes{0x40, 0x51, 0x62, 0x73, 0xC8, 0xD9, 0xEA, 0xFB}));
  EXPECT_EQ(values, (Codes{0x80, 0x91, 0xA2, 0xB3, 0xC4, 0xD5, 0xE6, 0xF7}));
}

// Values of a full tile of 8 channels: token t has code t in every channel.
TEST(TileTest, GoldenBytesOfAFullTileOfValues) {
  Codes codes;
  for (size_t t = 0; t < kTileTokens; ++t) codes.insert(codes.end(), 8, static_cast<uint8_t>(t));
  const auto first_channel = [&](int bits, size_t groups) {
    Codes tile(TileBytes(kTileTokens, 8, bits));
    PackTile(Side::kValues, codes.data(), kTileTokens, 8, bits, tile.data());
    Codes out;
    for (size_t group = 0; group < groups; ++group) out.insert(out.end(), &tile[group * 32], &tile[group * 32] + 4);
    return out;
  };
  EXPECT_EQ(first_channel(8, 4), (Codes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(first_channel(4, 2), (Codes{0x40, 0x51, 0x62, 0x73, 0xC8, 0xD9, 0xEA, 0xFB}));
  for (uint8_t& code : codes) code &= 3;
  EXPECT_EQ(first_channel(2, 1), (Codes{0x00, 0x55, 0xAA, 0xFF}));
}

}  // namespace
}  // namespace qkvshare
