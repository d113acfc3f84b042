// Malformed cards: each rule of docs/card_format.md fires, alone and by its number.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "base/file.h"
#include "card/card.h"
#include "card/card_test_util.h"
#include "card/format.h"

namespace qkvshare {
namespace {

using namespace card_format;  // NOLINT(google-build-using-namespace)
using card_test::MixedPlan;
using card_test::Parts;
using card_test::Patch;
using card_test::Reseal;
using card_test::SyntheticKv;
using Bytes = std::vector<uint8_t>;

constexpr Half kNan = 0x7E00;

Bytes Pack(const BitPlan& plan, bool with_profile = true) {
  const SyntheticKv kv(plan.tokens(), {{2, 16, 8}, {1, 8, 8}}, 1);
  const KvView view = kv.view();
  CardContent content = card_test::RichContent(plan.tokens());
  if (!with_profile) content.profile = {};
  return PackCard(view, plan, with_profile ? MeasureKeyProfiles(view, kSinkTokens, 1) : KeyProfiles{}, content, 1)
      ->Bytes();
}

Bytes SmallCard() { return Pack(MixedPlan(9)); }

void ExpectRule(const Bytes& card, int rule) {
  const Status status = Card::FromSpan(card).status();
  EXPECT_EQ(status.code(), rule == 3 || rule == 26 ? StatusCode::kUnsupported : StatusCode::kCorrupt)
      << rule << ": " << status.message();
  const std::string tag = "rule " + std::to_string(rule);
  const size_t at = status.message().find(tag);
  ASSERT_NE(at, std::string::npos) << rule << ": " << status.message();
  EXPECT_FALSE(std::isdigit(static_cast<unsigned char>(status.message()[at + tag.size()]))) << status.message();
}

TEST(CardReaderTest, AssembledCardsAreAsPacked) {
  EXPECT_EQ(Parts(SmallCard()).Assemble(), SmallCard());
  EXPECT_TRUE(Card::FromSpan(SmallCard()));
}

TEST(CardReaderTest, EveryFlippedBitIsRefused) {
  const Bytes good = SmallCard();
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes card = good;
      card[i] ^= static_cast<uint8_t>(1 << bit);
      ASSERT_FALSE(Card::FromSpan(card)) << "byte " << i;
    }
  }
}

TEST(CardReaderTest, EveryTruncationAndAnyExtraByteIsRefused) {
  Bytes card = SmallCard();
  for (size_t bytes = 0; bytes < card.size(); ++bytes) {
    // A copy of exact size, so that a sanitizer sees each read past the end.
    ASSERT_FALSE(Card::FromBytes(Bytes(card.begin(), card.begin() + static_cast<std::ptrdiff_t>(bytes)))) << bytes;
  }
  card.push_back(0);
  EXPECT_FALSE(Card::FromSpan(card));
}

using BreakBytes = std::function<void(Bytes*)>;

// Header and section table: patched in place.
std::vector<std::pair<int, BreakBytes>> HeaderCases() {
  constexpr size_t kTable = sizeof(FileHeader);
  constexpr auto kEntry = [](size_t i) { return kTable + i * sizeof(SectionEntry); };
  constexpr size_t kLast = kSingleSections + 3;
  const auto set = [](size_t offset, auto value) { return [=](Bytes* card) { Patch(card, offset, value); }; };
  const auto cut = [](size_t bytes) { return [=](Bytes* card) { card->resize(card->size() - bytes); }; };
  const auto sections = [=](uint32_t count) { return set(offsetof(FileHeader, section_count), count); };
  return {
      {1, [](Bytes* card) { card->resize(127); }},
      {2, set(0, 'q')},
      {3, set(offsetof(FileHeader, version), uint32_t{0})},
      {3, set(offsetof(FileHeader, version), kVersion + 1)},
      {4, set(offsetof(FileHeader, header_bytes), uint32_t{136})},
      {5, set(offsetof(FileHeader, section_entry_bytes), uint32_t{32})},
      {6, sections(kSingleSections)},
      {6, sections(kSingleSections + 3)},
      {6, sections(kSingleSections + 2 * kMaxLayers + 2)},
      {6, sections(kSingleSections + 2 * kMaxLayers)},
      {6, sections(UINT32_MAX)},
      {7, set(offsetof(FileHeader, reserved) + 55, uint8_t{1})},
      {9, set(offsetof(FileHeader, file_bytes), uint64_t{1} << 20)},
      {9, cut(64)},
      {10, set(kEntry(2) + offsetof(SectionEntry, type), uint32_t{4})},
      {10, set(kEntry(2) + offsetof(SectionEntry, index), uint32_t{1})},
      {10, set(kEntry(kSingleSections) + offsetof(SectionEntry, index), uint32_t{1})},
      {11, set(kEntry(3) + offsetof(SectionEntry, offset), uint64_t{64})},
      {11, set(kEntry(3) + offsetof(SectionEntry, offset), UINT64_MAX - 63)},
      {11, set(kEntry(3) + offsetof(SectionEntry, bytes), UINT64_MAX)},
      {11, set(kEntry(kLast) + offsetof(SectionEntry, bytes), uint64_t{1} << 20)},
  };
}

TEST(CardReaderTest, RulesOfHeaderAndSectionTable) {
  for (const auto& [rule, break_it] : HeaderCases()) {
    Bytes card = SmallCard();
    break_it(&card);
    Reseal(&card);
    ExpectRule(card, rule);
  }
}

TEST(CardReaderTest, RulesOfSealsAndPadding) {
  Bytes card = SmallCard();
  card[offsetof(FileHeader, checksum)] ^= 1;
  ExpectRule(card, 8);
  card = SmallCard();
  card[sizeof(FileHeader) + offsetof(SectionEntry, digest)] ^= 1;
  ExpectRule(card, 8);
  // Padding: after the levels (12 bytes) up to the bit map.
  card = SmallCard();
  const SectionEntry levels = Parts(card).entries[4];
  ASSERT_EQ(levels.bytes, 12u);
  card[levels.offset + levels.bytes] = 1;
  ExpectRule(card, 12);
  card = SmallCard();
  card.back() ^= 1;
  ExpectRule(card, 13);
  // Bytes after the last section, counted in the header.
  card = SmallCard();
  card.resize(card.size() + 64);
  Patch(&card, offsetof(FileHeader, file_bytes), uint64_t{card.size()});
  Reseal(&card);
  ExpectRule(card, 9);
}

// Opening a card of this user leaves the digests to VerifyDigests.
TEST(CardReaderTest, RulesOfDigests) {
  const auto seal_header = [](Bytes card) {
    const size_t table_end = sizeof(FileHeader) + Parts(card).entries.size() * sizeof(SectionEntry);
    Bytes checked(card.begin(), card.begin() + offsetof(FileHeader, checksum));
    checked.insert(checked.end(), card.begin() + sizeof(FileHeader),
                   card.begin() + static_cast<std::ptrdiff_t>(table_end));
    Patch(&card, offsetof(FileHeader, checksum), Xxh3(checked));
    return card;
  };
  Bytes card = SmallCard();
  card[offsetof(FileHeader, content_id) + 31] ^= 1;
  Result<Card> opened = Card::FromBytes(seal_header(card));
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->VerifyDigests().code(), StatusCode::kCorrupt);
  EXPECT_NE(opened->VerifyDigests().message().find("(rule 14)"), std::string::npos);

  Parts parts((SmallCard()));
  for (size_t i = 0; i < parts.entries.size(); ++i) {
    card = SmallCard();
    card[sizeof(FileHeader) + i * sizeof(SectionEntry) + offsetof(SectionEntry, digest)] ^= 1;
    const ByteSpan table = ByteSpan(card).subspan(sizeof(FileHeader), parts.entries.size() * sizeof(SectionEntry));
    Patch(&card, offsetof(FileHeader, content_id), Blake2b(table));
    opened = Card::FromBytes(seal_header(card));
    ASSERT_TRUE(opened);
    EXPECT_NE(opened->VerifyDigests().message().find("(rule 15)"), std::string::npos) << i;
  }
}

using Break = std::function<void(Parts*)>;

// Patches one value of a section.
template <typename T>
Break Set(SectionType type, size_t offset, T value) {
  return [=](Parts* parts) { Patch(&parts->section(type), offset, value); };
}
Break Resize(SectionType type, int by) {
  return [=](Parts* parts) {
    auto& section = parts->section(type);
    section.resize(section.size() + static_cast<size_t>(static_cast<ptrdiff_t>(by)));
  };
}
Break SetInfo(const std::string& text) {
  return [=](Parts* parts) { parts->section(SectionType::kInfo).assign(text.begin(), text.end()); };
}

// Two that follow each other in the format's order of rules do not undo each other: the last case of each is used.
std::vector<std::pair<int, Break>> SectionCases() {
  const auto geometry = [](size_t offset, auto value) { return Set(SectionType::kGeometry, offset, value); };
  const auto layer = [](size_t i, size_t offset, auto value) {
    return Set(SectionType::kLayers, i * sizeof(LayerEntry) + offset, value);
  };
  // One section more of keys and of values would be another number of layers; the geometry's stays.
  const Break drop_layer = [](Parts* parts) {
    for (const size_t i : {kSingleSections + 3, kSingleSections + 1}) {
      parts->entries.erase(parts->entries.begin() + i);
      parts->sections.erase(parts->sections.begin() + i);
    }
  };
  const std::string segment = R"({"role":"user","owner":"","parent":"","first_token":0,"tokens":8,"readers":[]})";
  const std::string info_start =
      R"({"model_name":"","architecture":"","sender":"","policy":"","created":"","writer":"","features":[],"cache_type":"","rounding":"","segments":[)";
  const std::string info = info_start + segment + "]}";
  const std::string all_tokens = R"({"role":"","owner":"","parent":"","first_token":0,"tokens":9,"readers":[]})";
  const std::string of_context =
      info_start + all_tokens + R"(],"context":[{"tokens":100,"card":")" + std::string(64, '3') + "\"}]}";
  return {
      {20, Resize(SectionType::kGeometry, 1)},
      {20, Resize(SectionType::kGeometry, -256)},
      {21, geometry(offsetof(Geometry, tokens), uint32_t{0})},
      {21, geometry(offsetof(Geometry, tokens), kMaxTokens + 1)},
      {22, geometry(offsetof(Geometry, layers), uint32_t{3})},
      {22, drop_layer},
      {23, geometry(offsetof(Geometry, levels), uint32_t{0})},
      {23, geometry(offsetof(Geometry, levels), kMaxLevels + 1)},
      {24, geometry(offsetof(Geometry, tile_tokens), uint32_t{32})},
      {25, geometry(offsetof(Geometry, exact_tokens), uint32_t{10})},
      {26, geometry(offsetof(Geometry, key_codec), uint8_t{1})},
      {26, geometry(offsetof(Geometry, value_codec), uint8_t{1})},
      {27, geometry(offsetof(Geometry, reserved), uint16_t{1})},
      {28, geometry(offsetof(Geometry, rope_base), NAN)},
      {28, geometry(offsetof(Geometry, rope_scale), INFINITY)},
      {28, geometry(offsetof(Geometry, rope_ext_factor), -INFINITY)},
      {28, geometry(offsetof(Geometry, rope_attn_factor), NAN)},
      {27, geometry(offsetof(Geometry, reserved_2), uint32_t{1})},
      {27, geometry(offsetof(Geometry, reserved_3) + 47, uint8_t{1})},
      {28, geometry(offsetof(Geometry, rope_dims), int32_t{-1})},
      {28, geometry(offsetof(Geometry, rope_dims), kMaxRopeDims + 1)},
      {28, geometry(offsetof(Geometry, rope_mode), int32_t{-1})},
      {28, geometry(offsetof(Geometry, rope_mode), kMaxRopeMode + 1)},
      {29, geometry(offsetof(Geometry, hop), kMaxHop + 1)},
      {35, geometry(offsetof(Geometry, hop), uint32_t{0})},
      {35, geometry(offsetof(Geometry, first_token), uint32_t{0})},
      {35, geometry(offsetof(Geometry, parent), Digest{})},
      {36, geometry(offsetof(Geometry, first_token), kMaxContextTokens)},
      {37, geometry(offsetof(Geometry, protected_tokens), uint32_t{10})},
      {38, geometry(offsetof(Geometry, profile_kind), uint32_t{1})},
      {38, geometry(offsetof(Geometry, profile_kind), uint32_t{3})},  // with an id
      {38, geometry(offsetof(Geometry, profile_kind), uint32_t{4})},
      {38,
       [](Parts* parts) {
         std::vector<uint8_t>& section = parts->section(SectionType::kGeometry);
         Patch(&section, offsetof(Geometry, profile_kind), uint32_t{3});
         Patch(&section, offsetof(Geometry, profile), Digest{});
         Patch(&section, offsetof(Geometry, parent), Digest{});
         Patch(&section, offsetof(Geometry, first_token), uint32_t{0});
       }},
      {38, geometry(offsetof(Geometry, profile), Digest{})},
      {30, Resize(SectionType::kLayers, -1)},
      {31, layer(0, offsetof(LayerEntry, kv_heads), uint32_t{0})},
      {31, layer(1, offsetof(LayerEntry, kv_heads), kMaxKvHeads + 1)},
      {32, layer(0, offsetof(LayerEntry, key_dim), uint16_t{12})},
      {32, layer(0, offsetof(LayerEntry, key_dim), uint16_t{0})},
      {32, layer(1, offsetof(LayerEntry, value_dim), uint16_t{kMaxHeadDim + 8})},
      {33, layer(0, offsetof(LayerEntry, key_rotation_block), uint16_t{8})},
      {33, layer(1, offsetof(LayerEntry, value_rotation_block), uint16_t{0})},
      {34, layer(1, offsetof(LayerEntry, reserved), uint16_t{1})},
      {34, layer(1, offsetof(LayerEntry, reserved_2), uint32_t{1})},
      {39, layer(1, offsetof(LayerEntry, window), kMaxContextTokens + 1)},
      {40, Resize(SectionType::kTokens, 4)},
      {41, Resize(SectionType::kPositions, -4)},
      {42, Set(SectionType::kTokens, 8 * 4, int32_t{-1})},
      {43, Set(SectionType::kPositions, 0, int32_t{11})},
      {43, geometry(offsetof(Geometry, position_offset), int32_t{9})},
      {43,
       [](Parts* parts) {
         Patch(&parts->section(SectionType::kPositions), 0, int32_t{-1});
         Patch(&parts->section(SectionType::kGeometry), offsetof(Geometry, position_offset), int32_t{-1});
       }},
      {44, Set(SectionType::kPositions, 5 * 4, int32_t{14})},
      {44, Set(SectionType::kPositions, 8 * 4, int32_t{-7})},
      {50, Resize(SectionType::kLevels, 2)},
      {50, geometry(offsetof(Geometry, levels), uint32_t{3})},
      {51, Resize(SectionType::kBitMap, 1)},
      {52, Set(SectionType::kLevels, 0, uint8_t{3})},
      {52, Set(SectionType::kLevels, 1, uint8_t{0})},
      {52, Set(SectionType::kLevels, 6, uint16_t{0x0808})},  // K8V8 twice
      {52, Set(SectionType::kBitMap, 8, uint8_t{6})},        // of levels 0 to 5
      {52, layer(0, offsetof(LayerEntry, key_adjustment), int8_t{4})},
      {52, layer(1, offsetof(LayerEntry, value_adjustment), int8_t{-128})},
      {53, geometry(offsetof(Geometry, average_code_bits), double{4.0})},
      {53, geometry(offsetof(Geometry, average_code_bits), std::nan(""))},
      {60, SetInfo(std::string(kMaxInfoBytes + 1, ' '))},
      {61, SetInfo("{}")},
      {61, SetInfo("")},
      {61, SetInfo(std::string(100000, '['))},
      {62, SetInfo(info)},        // covers 8 of 9 tokens
      {63, SetInfo(of_context)},  // but the card starts at position 10
      {70, Resize(SectionType::kProfile, 2)},
      {70, Resize(SectionType::kProfile, -160 + 1)},
      {71, Set(SectionType::kProfile, 2, kNan)},
      {71, Set(SectionType::kProfile, 2 * (64 + 7), Half{0xFC00})},
      {72, Set(SectionType::kProfile, 2 * 16, kNan)},
      {72, Set(SectionType::kProfile, 2 * 17, Half{0})},
      {72, Set(SectionType::kProfile, 2 * 17, Half{0x068D})},  // just below 1e-4
      {72, Set(SectionType::kProfile, 2 * (64 + 15), Half{0x8001})},
      {73, Resize(SectionType::kProfile, -160)},
      {73,
       [](Parts* parts) {
         Patch(&parts->section(SectionType::kGeometry), offsetof(Geometry, profile_kind), uint32_t{0});
         Patch(&parts->section(SectionType::kGeometry), offsetof(Geometry, profile), Digest{});
       }},
      {75, Resize(SectionType::kAnchors, 1)},
      {75, Resize(SectionType::kAnchors, 8 * kMaxAnchors)},
      {76, Set(SectionType::kAnchors, 8, uint32_t{3})},
      {76, Set(SectionType::kAnchors, 8, uint32_t{109})},
      {77, Set(SectionType::kAnchors, 4, 0.0f)},
      {77, Set(SectionType::kAnchors, 4, 1.5f)},
      {77, Set(SectionType::kAnchors, 12, NAN)},
      {80, [](Parts* parts) { parts->sections[kSingleSections].resize(parts->sections[kSingleSections].size() + 64); }},
      {80, [](Parts* parts) { parts->sections.back().pop_back(); }},
      {80, [](Parts* parts) { parts->sections.back().clear(); }},
  };
}

TEST(CardReaderTest, RulesOfSections) {
  const std::vector<std::pair<int, Break>> cases = SectionCases();
  for (size_t i = 0; i < cases.size(); ++i) {
    Parts parts((SmallCard()));
    ASSERT_EQ(parts.section(SectionType::kProfile).size(), 160u);
    cases[i].second(&parts);
    SCOPED_TRACE(i);
    ExpectRule(parts.Assemble(), cases[i].first);
  }
}

// As the format lists them.
std::vector<int> OrderOfRules() {
  const std::string text = *ReadText(QKV_SOURCE_DIR "/docs/card_format.md", 1 << 20);
  const size_t start = text.find("order of rules:");
  const std::string list = start == std::string::npos ? "" : text.substr(start, text.find("```", start) - start);
  std::vector<int> rules;
  for (size_t at = 0; (at = list.find_first_of("0123456789", at)) != std::string::npos;) {
    const size_t end = list.find_first_not_of("0123456789", at);
    rules.push_back(std::stoi(list.substr(at, end - at)));
    at = end;
  }
  return rules;
}

// Cards that break two rules, each with the next.
TEST(CardReaderTest, TheFirstBrokenRuleInTheOrderOfTheFormatIsNamed) {
  std::map<int, BreakBytes> header;
  std::map<int, Break> sections;
  for (const auto& [rule, break_it] : HeaderCases()) header[rule] = break_it;
  for (const auto& [rule, break_it] : SectionCases()) sections[rule] = break_it;
  const std::vector<int> rules = OrderOfRules();
  size_t tried = 0;
  for (size_t i = 0; i + 1 < rules.size(); ++i) {
    const int first = rules[i];
    const int second = rules[i + 1];
    SCOPED_TRACE(second);
    if (header.contains(first) && header.contains(second)) {
      Bytes card = SmallCard();
      header[second](&card);
      header[first](&card);
      Reseal(&card);
      ExpectRule(card, first);
    } else if (sections.contains(first) && sections.contains(second)) {
      Parts parts((SmallCard()));
      sections[second](&parts);
      sections[first](&parts);
      ExpectRule(parts.Assemble(), first);
    } else {
      continue;
    }
    ++tried;
  }
  // All but 8, 12 and 13, which are about what sealing makes right, and the five pairs with them or around them.
  EXPECT_EQ(rules.size(), header.size() + sections.size() + 3);
  EXPECT_EQ(tried, rules.size() - 1 - 5);
}

TEST(CardReaderTest, ProfileMayBeEmpty) {
  const Result<Card> card = Card::FromBytes(Pack(MixedPlan(9), false));
  ASSERT_TRUE(card) << card.status().message();
  EXPECT_TRUE(card->key_profile(0, 1).empty());
  std::vector<Half> out(9 * 32);
  EXPECT_TRUE(card->Unpack(ScalarKernels(), 0, Side::kKeys, 9, out.data()).ok());
}

// The payload is checked as it is unpacked: a NaN with right checksums must not reach a cache.
TEST(CardReaderTest, NonFinitePayloadIsRefusedByUnpack) {
  for (const Level level : kLevels) {
    Parts parts(Pack(UniformPlan(9, level, 0)));
    const std::vector<uint32_t> sizes = {9};
    const std::vector<int> bits = {level.value_bits};
    const BlockLayout layout = BlockLayout::Make(8, bits, sizes);
    // Values of layer 0, second head, token 6: its scale, or its second channel.
    const size_t at = layout.bytes + (level == kExactLevel ? 6 * 16 + 2 : layout.scales_offset + 6 * 2);
    Patch(&parts.sections[kSingleSections + 2], at, level == kExactLevel ? kNan : Half{0x7FC0});
    const Result<Card> card = Card::FromBytes(parts.Assemble());
    ASSERT_TRUE(card) << card.status().message();
    EXPECT_TRUE(card->VerifyDigests().ok());
    std::vector<Half> out(9 * 16);
    const Status status = card->Unpack(ScalarKernels(), 0, Side::kValues, 9, out.data());
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_NE(status.message().find("(rule 90): layer 0: the packed values of token 6"), std::string::npos)
        << status.message();
    EXPECT_TRUE(card->Unpack(ScalarKernels(), 0, Side::kValues, 6, out.data()).ok());  // tokens before it are fine
    EXPECT_TRUE(card->Unpack(ScalarKernels(), 1, Side::kValues, 9, out.data()).ok());
  }
}

// Readers take any code and any scale in range: a card of the largest unpacks to finite rows.
TEST(CardReaderTest, AnyCodesGiveFiniteRows) {
  Parts parts(Pack(UniformPlan(9, {8, 8}, 0)));
  for (size_t i = kSingleSections; i < parts.sections.size(); ++i) {
    for (size_t at = 0; at + 1 < parts.sections[i].size(); at += 2) Patch(&parts.sections[i], at, RowScale{0x537F});
  }
  for (size_t at = 0; at < 160; at += 2) Patch(&parts.section(SectionType::kProfile), at, Half{0x7BFF});
  const Result<Card> card = Card::FromBytes(parts.Assemble());
  ASSERT_TRUE(card) << card.status().message();
  std::vector<Half> out(9 * 32);
  ASSERT_TRUE(card->Unpack(ScalarKernels(), 0, Side::kKeys, 9, out.data()).ok());
  EXPECT_TRUE(std::all_of(out.begin(), out.end(), IsFiniteHalf));
}

}  // namespace
}  // namespace qkvshare
