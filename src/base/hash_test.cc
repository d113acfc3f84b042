#include "base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace qkvshare {
namespace {

ByteSpan Bytes(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

// FIPS 180-2, appendix B, and the digest of nothing.
TEST(HashTest, Sha256KnownAnswers) {
  const std::pair<std::string, std::string> answers[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
  };
  for (const auto& [text, digest] : answers) {
    Sha256Hasher hasher;
    hasher.Update(Bytes(text));
    EXPECT_EQ(ToHex(hasher.Finish()), digest) << text;
  }
}

// Independent implementation: Python's hashlib.blake2b(text, digest_size=32).
TEST(HashTest, Blake2bKnownAnswers) {
  EXPECT_EQ(ToHex(Blake2b({})), "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  EXPECT_EQ(ToHex(Blake2b(Bytes("abc"))), "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

// The sanity buffer and values of xxHash's own test suite; the lengths cover each of XXH3's code paths.
TEST(HashTest, Xxh3KnownAnswers) {
  const std::pair<size_t, uint64_t> answers[] = {
      {0, 0x2D06800538D394C2u},   {1, 0xC44BDFF4074EECDBu},   {6, 0x27B56A84CD2D7325u},    {12, 0xA713DAF0DFBB77E7u},
      {24, 0xA3FE70BF9D3510EBu},  {48, 0x397DA259ECBA1F11u},  {80, 0xBCDEFBBB2C47C90Au},   {195, 0xCD94217EE362EC3Au},
      {403, 0xCDEB804D65C6DEA4u}, {512, 0x617E49599013CB6Bu}, {2048, 0xDD59E2C3A5F038E0u}, {2240, 0x6E73A90539CF2948u},
  };
  std::vector<uint8_t> buffer(2240);
  uint64_t generator = 2654435761u;
  for (uint8_t& byte : buffer) {
    byte = static_cast<uint8_t>(generator >> 56);
    generator *= 11400714785074694797u;
  }
  for (const auto& [bytes, hash] : answers) EXPECT_EQ(Xxh3({buffer.data(), bytes}), hash) << bytes;
}

TEST(HashTest, PiecesGiveTheDigestOfTheWhole) {
  std::vector<uint8_t> data(1000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 7);
  Blake2bHasher hasher;
  Sha256Hasher whole_sha;
  Sha256Hasher pieces_sha;
  whole_sha.Update(data);
  for (size_t at = 0; at < data.size(); at += 33) {
    const ByteSpan piece = ByteSpan(data).subspan(at, std::min<size_t>(33, data.size() - at));
    hasher.Update(piece);
    pieces_sha.Update(piece);
  }
  Blake2bHasher moved = std::move(hasher);
  EXPECT_EQ(moved.Finish(), Blake2b(data));
  EXPECT_EQ(pieces_sha.Finish(), whole_sha.Finish());
}

TEST(HashTest, NeighbouringStringsDoNotRunTogether) {
  Blake2bHasher first;
  first.UpdateString("ab");
  first.UpdateString("c");
  Blake2bHasher second;
  second.UpdateString("a");
  second.UpdateString("bc");
  EXPECT_NE(first.Finish(), second.Finish());
}

TEST(HashTest, HexIsLowerCase) {
  const uint8_t bytes[] = {0x00, 0x0F, 0xA5, 0xFF};
  EXPECT_EQ(ToHex(bytes), "000fa5ff");
  EXPECT_EQ(ToHex({}), "");
}

TEST(HashTest, ADigestIsReadAsItIsWritten) {
  const Digest digest = Blake2b({});
  const std::string text = ToHex(digest);
  EXPECT_EQ(DigestFromHex(text), digest);
  for (const size_t at : {size_t{0}, size_t{31}, text.size() - 1}) {
    for (const char wrong : {'g', ' ', '-', '+', 'A', '\0'}) {
      std::string other = text;
      other[at] = wrong;
      EXPECT_FALSE(DigestFromHex(other)) << other;
    }
  }
  EXPECT_FALSE(DigestFromHex(text + "0"));
  EXPECT_FALSE(DigestFromHex(text.substr(2)));
  EXPECT_FALSE(DigestFromHex(""));
}

}  // namespace
}  // namespace qkvshare
