// Every field of the format, each with hostile values and right checksums. A field that is added without a line here
// fails the first test.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <set>

#include "card/card.h"
#include "card/card_test_util.h"
#include "card/format.h"

namespace qkvshare {
namespace {

using namespace card_format;  // NOLINT(google-build-using-namespace)
using card_test::Parts;
using card_test::Reseal;
using Bytes = std::vector<uint8_t>;

enum class Place { kHeader, kEntry, kGeometry, kLayer, kAnchor };

struct Field {
  Place place;
  const char* name;
  size_t offset, bytes;
  // Rules that may refuse it, 0 among them where some other value is valid too.
  std::set<int> rules;
};

#define FIELD(place, type, name, ...) \
  Field { place, #name, offsetof(type, name), sizeof(type::name), __VA_ARGS__ }

const std::vector<Field>& Fields() {
  using P = Place;
  static const std::vector<Field> fields = {
      FIELD(P::kHeader, FileHeader, magic, {2}),
      FIELD(P::kHeader, FileHeader, version, {3}),
      FIELD(P::kHeader, FileHeader, header_bytes, {4}),
      FIELD(P::kHeader, FileHeader, section_count, {6}),
      FIELD(P::kHeader, FileHeader, section_entry_bytes, {5}),
      FIELD(P::kHeader, FileHeader, file_bytes, {9}),
      FIELD(P::kHeader, FileHeader, content_id, {0}),  // made right again
      FIELD(P::kHeader, FileHeader, reserved, {7}),
      FIELD(P::kHeader, FileHeader, checksum, {0}),
      FIELD(P::kEntry, SectionEntry, type, {10}),
      FIELD(P::kEntry, SectionEntry, index, {10}),
      FIELD(P::kEntry, SectionEntry, offset, {11}),
      FIELD(P::kEntry, SectionEntry, bytes, {11, 20}),
      FIELD(P::kEntry, SectionEntry, checksum, {0}),
      FIELD(P::kEntry, SectionEntry, digest, {0}),
      FIELD(P::kGeometry, Geometry, tokens, {21, 40}),
      FIELD(P::kGeometry, Geometry, layers, {22}),
      FIELD(P::kGeometry, Geometry, levels, {23, 50}),
      FIELD(P::kGeometry, Geometry, position_offset, {43}),
      FIELD(P::kGeometry, Geometry, tile_tokens, {24}),
      FIELD(P::kGeometry, Geometry, exact_tokens, {25, 0}),
      FIELD(P::kGeometry, Geometry, hop, {29, 35, 0}),
      FIELD(P::kGeometry, Geometry, key_codec, {26}),
      FIELD(P::kGeometry, Geometry, value_codec, {26}),
      FIELD(P::kGeometry, Geometry, reserved, {27}),
      FIELD(P::kGeometry, Geometry, rope_dims, {28, 0}),
      FIELD(P::kGeometry, Geometry, rope_mode, {28, 0}),
      FIELD(P::kGeometry, Geometry, rope_base, {28, 0}),
      FIELD(P::kGeometry, Geometry, rope_scale, {28, 0}),
      FIELD(P::kGeometry, Geometry, rope_ext_factor, {28, 0}),
      FIELD(P::kGeometry, Geometry, rope_attn_factor, {28, 0}),
      FIELD(P::kGeometry, Geometry, average_code_bits, {53, 0}),  // 0: its last bit
      FIELD(P::kGeometry, Geometry, model_fingerprint, {0}),
      FIELD(P::kGeometry, Geometry, rope_fingerprint, {0}),
      FIELD(P::kGeometry, Geometry, first_token, {35, 36, 76, 0}),
      FIELD(P::kGeometry, Geometry, protected_tokens, {37, 0}),
      FIELD(P::kGeometry, Geometry, profile_kind, {38}),
      FIELD(P::kGeometry, Geometry, reserved_2, {27}),
      FIELD(P::kGeometry, Geometry, parent, {35, 0}),
      FIELD(P::kGeometry, Geometry, profile, {38, 0}),
      FIELD(P::kGeometry, Geometry, reserved_3, {27}),
      FIELD(P::kLayer, LayerEntry, kv_heads, {31, 53}),
      FIELD(P::kLayer, LayerEntry, key_dim, {32}),
      FIELD(P::kLayer, LayerEntry, value_dim, {32}),
      FIELD(P::kLayer, LayerEntry, key_rotation_block, {33}),
      FIELD(P::kLayer, LayerEntry, value_rotation_block, {33}),
      FIELD(P::kLayer, LayerEntry, key_adjustment, {53}),
      FIELD(P::kLayer, LayerEntry, value_adjustment, {53}),
      FIELD(P::kLayer, LayerEntry, reserved, {34}),
      FIELD(P::kLayer, LayerEntry, window, {39, 0}),
      FIELD(P::kLayer, LayerEntry, reserved_2, {34}),
      FIELD(P::kAnchor, AnchorEntry, token, {76, 0}),
      FIELD(P::kAnchor, AnchorEntry, weight, {77, 0}),
  };
  return fields;
}
#undef FIELD

Bytes SmallCard() {
  const card_test::SyntheticKv kv(9, {{2, 16, 8}, {1, 8, 8}}, 1);
  const KvView view = kv.view();
  return PackCard(view, card_test::MixedPlan(9), MeasureKeyProfiles(view, kSinkTokens, 1), card_test::RichContent(9), 1)
      ->Bytes();
}

size_t StartOf(const Bytes& card, Place place) {
  const Parts parts(card);
  const auto section = [&](SectionType type) { return parts.entries[static_cast<size_t>(type) - 1].offset; };
  switch (place) {
    case Place::kHeader: return 0;
    case Place::kEntry: return sizeof(FileHeader);  // the first: geometry
    case Place::kGeometry: return section(SectionType::kGeometry);
    case Place::kLayer: return section(SectionType::kLayers);
    case Place::kAnchor: return section(SectionType::kAnchors);
  }
  return 0;
}

// 0, one more, one less, the sign bits of 32 and 64 bits, and all ones, in the low bytes of the field.
std::vector<Bytes> HostileValues(const Bytes& now) {
  uint64_t n = 0;
  std::memcpy(&n, now.data(), std::min<size_t>(8, now.size()));
  std::vector<Bytes> values;
  for (const uint64_t value : {uint64_t{0}, n + 1, n - 1, uint64_t{1} << 31, uint64_t{1} << 63, ~uint64_t{0}}) {
    Bytes bytes(now.size(), value == ~uint64_t{0} ? 0xFF : 0);
    std::memcpy(bytes.data(), &value, std::min<size_t>(8, now.size()));
    if (bytes != now) values.push_back(bytes);
  }
  return values;
}

// The rule in a refusal's message; 0 where the card opens.
int RuleOf(const Bytes& card) {
  const Result<Card> opened = Card::FromSpan(card);
  if (opened) {
    for (size_t layer = 0; layer < opened->layers(); ++layer) {
      std::vector<Half> out(opened->tokens() * opened->shape(layer).row_values(Side::kKeys));
      (void)opened->Unpack(ScalarKernels(), layer, Side::kKeys, opened->tokens(), out.data());
    }
    return 0;
  }
  const std::string& message = opened.status().message();
  const size_t at = message.find("rule ");
  return at == std::string::npos ? -1 : std::atoi(message.c_str() + at + 5);
}

TEST(CardFieldsTest, EveryByteOfEveryStructIsAField) {
  const std::pair<Place, size_t> structs[] = {{Place::kHeader, sizeof(FileHeader)},
                                              {Place::kEntry, sizeof(SectionEntry)},
                                              {Place::kGeometry, sizeof(Geometry)},
                                              {Place::kLayer, sizeof(LayerEntry)},
                                              {Place::kAnchor, sizeof(AnchorEntry)}};
  for (const auto& [place, bytes] : structs) {
    std::vector<int> covered(bytes, 0);
    for (const Field& field : Fields()) {
      for (size_t i = 0; field.place == place && i < field.bytes; ++i) ++covered[field.offset + i];
    }
    EXPECT_EQ(covered, std::vector<int>(bytes, 1)) << static_cast<int>(place);
  }
}

// Nothing is allocated by a size that a card claims: a child process does it all in 64 MiB more than it has.
TEST(CardFieldsTest, HostileValuesAreRefusedByTheirRuleWithoutLargeAllocations) {
  const Bytes good = SmallCard();
  ASSERT_EQ(RuleOf(good), 0);
  const auto try_all = [&] {
    int wrong = 0;
    for (const Field& field : Fields()) {
      const size_t at = StartOf(good, field.place) + field.offset;
      const Bytes now(good.begin() + static_cast<ptrdiff_t>(at),
                      good.begin() + static_cast<ptrdiff_t>(at + field.bytes));
      std::set<int> seen;
      for (const Bytes& value : HostileValues(now)) {
        Bytes card = good;
        std::copy(value.begin(), value.end(), card.begin() + static_cast<ptrdiff_t>(at));
        Reseal(&card);
        seen.insert(RuleOf(card));
      }
      if (seen == field.rules) continue;
      std::fprintf(stderr, "%s:", field.name);
      for (const int rule : seen) std::fprintf(stderr, " %d", rule);
      std::fprintf(stderr, "\n");
      wrong = 1;
    }
    return wrong;
  };
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const auto limit_memory = [] {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * 4096 + (rlim_t{64} << 20);
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_AS, &limit);
  };
#else
  const auto limit_memory = [] {};
#endif
  EXPECT_EXIT(
      {
        limit_memory();
        std::exit(try_all());
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace qkvshare
