#include "card/static_profile.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "card/card_test_util.h"

namespace qkvshare {
namespace {

using Bytes = std::vector<uint8_t>;

StaticProfile Example() {
  const card_test::SyntheticKv kv(30, {{2, 16, 8}, {1, 8, 8}}, 5);
  StaticProfile profile;
  profile.identity.model.fill(1);
  profile.identity.rope.fill(2);
  profile.tokens = 26;
  profile.shapes = kv.shapes;
  profile.keys = MeasureKeyProfiles(kv.view(), kSinkTokens, 1);
  profile.layers = {{1, 0}, {0, -1}};
  return profile;
}

void Seal(Bytes* bytes) {
  if (bytes->size() < 128) return;
  Bytes covered = *bytes;
  covered.erase(covered.begin() + 120, covered.begin() + 128);
  card_test::Patch(bytes, 120, Xxh3(covered));
}

TEST(StaticProfileTest, EveryFieldComesBack) {
  StaticProfile written = Example();
  const Result<Bytes> bytes = StaticProfileBytes(&written);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(written.id, Blake2b(*bytes));
  const Result<StaticProfile> read = ParseStaticProfile(*bytes);
  ASSERT_TRUE(read) << read.status().message();
  EXPECT_EQ(read->identity, written.identity);
  EXPECT_EQ(read->tokens, 26u);
  EXPECT_EQ(read->shapes, written.shapes);
  EXPECT_EQ(read->layers, written.layers);
  EXPECT_EQ(read->id, written.id);
  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t head = 0; head < read->keys[layer].size(); ++head) {
      EXPECT_EQ(read->keys[layer][head].mean, written.keys[layer][head].mean);
      EXPECT_EQ(read->keys[layer][head].scale, written.keys[layer][head].scale);
    }
  }
}

TEST(StaticProfileTest, StatisticsOfPartsAreThoseOfTheWhole) {
  const card_test::SyntheticKv kv(50, {{1, 16, 8}}, 6);
  const HeadRows rows = kv.view().head(0, Side::kKeys, 0);
  HeadRows first = rows;
  first.tokens = 20;
  KeyStatistics parts(16);
  parts.Add(first, 4);
  parts.Add(rows, 20);
  parts.Add(rows, 50);  // nothing
  EXPECT_EQ(parts.rows(), 46u);
  EXPECT_EQ(parts.Profile().mean, MeasureKeyProfile(rows, 4).mean);
  EXPECT_EQ(parts.Profile().scale, MeasureKeyProfile(rows, 4).scale);
  EXPECT_TRUE(KeyStatistics(16).Profile().empty());
}

TEST(StaticProfileTest, EveryRuleFires) {
  StaticProfile example = Example();
  const Bytes good = *StaticProfileBytes(&example);
  const auto set = [](size_t offset, auto value) {
    return [=](Bytes* bytes) { card_test::Patch(bytes, offset, value); };
  };
  const std::pair<int, std::function<void(Bytes*)>> cases[] = {
      {1, [](Bytes* bytes) { bytes->resize(127); }},
      {2, set(0, 'q')},
      {3, set(8, uint32_t{2})},
      {4, set(12, uint32_t{64})},
      {5, set(16, uint64_t{1} << 63)},
      {5, [](Bytes* bytes) { bytes->push_back(0); }},
      {7, set(32, uint32_t{0})},
      {7, set(32, uint32_t{1025})},
      {8, set(36, uint32_t{1})},
      {8, set(119, uint8_t{1})},
      {8, set(128 + 15, uint8_t{1})},
      {9, set(32, uint32_t{1024})},
      {10, set(128, uint32_t{0})},
      {10, set(128, UINT32_MAX)},
      {10, set(128 + 4, uint16_t{12})},
      {10, set(128 + 6, uint16_t{0})},
      {11, set(128 + 8, int8_t{4})},
      {11, set(128 + 25, int8_t{-128})},
      {12, set(128, uint32_t{1000})},
      {12,
       [](Bytes* bytes) {
         bytes->resize(bytes->size() + 2);
         card_test::Patch(bytes, 16, uint64_t{bytes->size()});
       }},
      {13, set(160, Half{0x7E00})},
      {13, set(160 + 32, Half{0})},
      {13, set(160 + 32, Half{0x068D})},
      {13, set(160 + 32, Half{0x7C00})},
  };
  for (const auto& [rule, change] : cases) {
    Bytes bytes = good;
    change(&bytes);
    Seal(&bytes);
    const Status status = ParseStaticProfile(bytes).status();
    EXPECT_EQ(status.code(), rule == 3 ? StatusCode::kUnsupported : StatusCode::kCorrupt) << rule;
    EXPECT_NE(status.message().find("(rule P" + std::to_string(rule) + ")"), std::string::npos)
        << rule << ": " << status.message();
  }
  for (size_t i = 0; i < good.size(); ++i) {
    Bytes flipped = good;
    flipped[i] ^= 0x10;
    EXPECT_FALSE(ParseStaticProfile(flipped)) << i;
    EXPECT_FALSE(ParseStaticProfile(ByteSpan(good).first(i))) << i;
  }
}

TEST(StaticProfileTest, PartsThatDoNotFitAreNotWritten) {
  const std::function<void(StaticProfile*)> changes[] = {
      [](StaticProfile* p) { p->keys.pop_back(); },
      [](StaticProfile* p) { p->layers.pop_back(); },
      [](StaticProfile* p) { p->layers[0].keys = 4; },
      [](StaticProfile* p) { p->shapes[0].kv_heads = 3; },
      [](StaticProfile* p) { p->shapes[1].value_dim = 9; },
      [](StaticProfile* p) { p->keys[1][0].scale[2] = 0; },
      [](StaticProfile* p) { *p = {}; },
  };
  for (const auto& change : changes) {
    StaticProfile profile = Example();
    change(&profile);
    EXPECT_EQ(StaticProfileBytes(&profile).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(StaticProfileTest, FilesAndFit) {
  std::string folder = (std::filesystem::temp_directory_path() / "qkv_profile_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/p";
  StaticProfile profile = Example();
  ASSERT_TRUE(WriteStaticProfile(path, &profile).ok());
  const Result<StaticProfile> read = OpenStaticProfile(path);
  ASSERT_TRUE(read);
  EXPECT_TRUE(CheckProfileFits(*read, profile.identity, profile.shapes).ok());
  ModelIdentity other = profile.identity;
  other.rope.fill(9);
  EXPECT_NE(CheckProfileFits(*read, other, profile.shapes).message().find("another RoPE"), std::string::npos);
  other.model.fill(9);
  EXPECT_EQ(CheckProfileFits(*read, other, profile.shapes).code(), StatusCode::kMismatch);
  EXPECT_NE(CheckProfileFits(*read, profile.identity, {}).message().find("another shape"), std::string::npos);
  EXPECT_EQ(OpenStaticProfile(folder + "/missing").status().code(), StatusCode::kNotFound);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace qkvshare
