// Golden cards: files in tests/golden/ that every reader of version 1 must read the same for ever, each with a text of
// what it holds, and in tests/golden/invalid/ those that it must refuse, with this software's message.
// QKV_WRITE_GOLDEN=1 writes them anew: for another version, or where a message has other words.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <ostream>

#include "base/file.h"
#include "card/card.h"
#include "card/card_test_util.h"

namespace qkvshare {
namespace {

// Rows that are the same on every machine: pseudo-random, with a biased key channel, and among the values a row of
// zeros, a constant one, the largest and the smallest.
struct GoldenKv : card_test::SyntheticKv {
  GoldenKv(size_t token_count, const std::vector<LayerShape>& layer_shapes)
      : SyntheticKv(token_count, layer_shapes, 0) {
    uint64_t state = 1;
    for (size_t i = 0; i < rows.size(); ++i) {
      const LayerShape& shape = shapes[i / 2];
      const size_t dim = shape.dim(i % 2 == 0 ? Side::kKeys : Side::kValues);
      for (size_t at = 0; at < rows[i].size(); ++at) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const float x = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
        rows[i][at] = FloatToHalf(x + (i % 2 == 0 && at % dim == 1 ? 20.0f : 0.0f));
      }
    }
    const Half special[] = {0, FloatToHalf(-3.0f), 0x7BFF, 1};
    const size_t row = shapes[0].row_values(Side::kValues);
    for (size_t i = 0; i < std::size(special) && (i + 5) * row <= rows[1].size(); ++i) {
      std::fill_n(rows[1].begin() + static_cast<ptrdiff_t>((i + 4) * row), row, special[i]);
    }
  }
};

std::vector<uint8_t> PackGolden(const GoldenKv& kv, const BitPlan& plan, const CardContent& content) {
  const KvView view = kv.view();
  const Result<PackedCard> card = PackCard(view, plan, MeasureKeyProfiles(view, kSinkTokens, 1), content, 1);
  EXPECT_TRUE(card) << card.status().message();
  return card ? card->Bytes() : std::vector<uint8_t>();
}

std::vector<uint8_t> Make(const std::string& name) {
  if (name == "every_level") {
    return PackGolden(GoldenKv(40, {{2, 64, 32}, {1, 24, 72}}), card_test::MixedPlan(40), card_test::Content(40));
  }
  if (name == "delta") {
    BitPlan plan = card_test::MixedPlan(19);
    plan.layers = {{1, 0}, {0, -1}};
    return PackGolden(GoldenKv(19, {{1, 16, 16}, {2, 8, 8}}), plan, card_test::RichContent(19));
  }
  if (name == "inherited") {
    CardContent content = card_test::RichContent(20);
    content.profile = {ProfileKind::kInherited, {}};
    return PackGolden(GoldenKv(20, {{2, 16, 24}, {1, 8, 8}}), UniformPlan(20, {4, 2}, 0), content);
  }
  if (name == "context") {
    CardContent content = card_test::RichContent(18);
    content.first_token = 10;  // where it lies
    content.anchors = {{3, 0.25f}};
    content.info.context = {{Digest{}, 4}, {content.parent, 5}, {content.parent, 1}};
    content.info.context[0].card.fill(0x55);
    return PackGolden(GoldenKv(18, {{1, 8, 8}, {1, 8, 8}}), UniformPlan(18, {4, 4}, 0), content);
  }
  if (name == "exact") {
    return PackGolden(GoldenKv(9, {{1, 8, 8}}), UniformPlan(9, kExactLevel, 0), card_test::Content(9));
  }
  return PackGolden(GoldenKv(3, {{1, 8, 8}}), UniformPlan(3, {2, 2}, 0), card_test::Content(3));  // "short"
}

// What a reader must find.
std::string Describe(const Card& card) {
  std::string text = fmt::format("content id {}\ntokens {}, first {}, positions {} to {}\ncode bits {:.6f}\n",
                                 ToHex(card.content_id()), card.tokens(), card.first_token(), card.positions().front(),
                                 card.positions().back(), card.average_code_bits());
  const ProfileSource& profile = card.profile();
  text += fmt::format("profile kind {}, id {}, {} exact\n", static_cast<uint32_t>(profile.kind), ToHex(profile.id),
                      card.exact_tokens());
  text += fmt::format("info {}\n", CardInfoToJson(card.info()));
  for (size_t layer = 0; layer < card.layers(); ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      std::vector<Half> rows(card.tokens() * card.shape(layer).row_values(side));
      const Status status = card.Unpack(ScalarKernels(), layer, side, card.tokens(), rows.data());
      EXPECT_TRUE(status.ok()) << status.message();
      const ByteSpan bytes(reinterpret_cast<const uint8_t*>(rows.data()), rows.size() * sizeof(Half));
      text += fmt::format("layer {} {} {}\n", layer, SideName(side), ToHex(Blake2b(bytes)));
    }
  }
  return text;
}

// Text of the file, after QKV_WRITE_GOLDEN=1 has written it and its card anew.
std::string Golden(const std::string& path, const std::vector<uint8_t>& card, const std::string& text) {
  if (std::getenv("QKV_WRITE_GOLDEN") != nullptr) {  // NOLINT(concurrency-mt-unsafe)
    EXPECT_TRUE(WriteFileAtomic(path + ".card", {card}).ok());
    EXPECT_TRUE(WriteFileAtomic(path + ".txt", {{reinterpret_cast<const uint8_t*>(text.data()), text.size()}}).ok());
  }
  const Result<std::string> golden = ReadText(path + ".txt", 1 << 20);
  EXPECT_TRUE(golden) << golden.status().message();
  return golden ? *golden : "";
}

// The writer still makes the bytes of the file.
void ExpectSameBytes(const MappedFile& file, const std::vector<uint8_t>& card) {
  EXPECT_TRUE(std::equal(card.begin(), card.end(), file.bytes().begin(), file.bytes().end()));
}

class GoldenCardTest : public testing::TestWithParam<const char*> {
 protected:
  std::string path_ = std::string(QKV_SOURCE_DIR) + "/tests/golden/" + GetParam();
};

TEST_P(GoldenCardTest, ReadsAsWritten) {
  const std::vector<uint8_t> packed = Make(GetParam());
  const Result<Card> made = Card::FromSpan(packed);
  ASSERT_TRUE(made) << made.status().message();
  const std::string text = Golden(path_, packed, Describe(*made));
  const Result<Card> card = Card::Open(path_ + ".card");
  ASSERT_TRUE(card) << card.status().message();
  EXPECT_TRUE(card->VerifyDigests().ok());
  EXPECT_EQ(Describe(*card), text);
  ExpectSameBytes(*MappedFile::Open(path_ + ".card"), packed);
}

INSTANTIATE_TEST_SUITE_P(Cards, GoldenCardTest,
                         testing::Values("every_level", "delta", "inherited", "context", "exact", "short"),
                         [](const auto& card) { return std::string(card.param); });

// A small card with everything that the cases below break.
std::vector<uint8_t> MakeSmall() {
  return PackGolden(GoldenKv(5, {{1, 8, 8}}), UniformPlan(5, {4, 4}, 0), card_test::Content(5));
}

struct Refusal {
  const char* name;
  std::function<void(card_test::Parts*)> change;  // sealed again after it
  std::function<void(std::vector<uint8_t>*)> damage = [](std::vector<uint8_t>*) {};
};

std::ostream& operator<<(std::ostream& out, const Refusal& refusal) { return out << refusal.name; }

// One each of a typical rule: damage, other versions, hostile sizes, contradictions, and payload that is no number.
std::vector<Refusal> Refusals() {
  using namespace card_format;  // NOLINT(google-build-using-namespace)
  using card_test::Parts;
  using card_test::Patch;
  const auto set = [](SectionType section, size_t offset, auto value) {
    return [=](Parts* parts) { Patch(&parts->section(section), offset, value); };
  };
  const auto nothing = [](Parts*) {};
  return {
      {"01_cut_in_the_header", nothing, [](std::vector<uint8_t>* card) { card->resize(100); }},
      {"02_magic", [](Parts* parts) { parts->header.magic[0] = 'q'; }},
      {"03_version", [](Parts* parts) { parts->header.version = kVersion + 1; }},
      {"08_flipped_bit_in_the_table", nothing, [](std::vector<uint8_t>* card) { (*card)[200] ^= 1; }},
      {"09_cut_at_the_end", nothing, [](std::vector<uint8_t>* card) { card->resize(card->size() - 64); }},
      {"13_flipped_bit_in_the_values", nothing, [](std::vector<uint8_t>* card) { card->back() ^= 1; }},
      {"21_a_billion_tokens", set(SectionType::kGeometry, offsetof(Geometry, tokens), uint32_t{1000000000})},
      {"32_head_size", set(SectionType::kLayers, offsetof(LayerEntry, key_dim), uint16_t{12})},
      {"44_positions", set(SectionType::kPositions, 4, int32_t{10})},
      {"52_level", set(SectionType::kLevels, 0, uint8_t{5})},
      {"61_info", [](Parts* parts) { parts->section(SectionType::kInfo) = {'{', '}'}; }},
      {"63_context_without_parent",
       [](Parts* parts) {
         std::vector<uint8_t>& info = parts->section(SectionType::kInfo);
         const std::string context = R"("context":[{"tokens":1,"card":")" + std::string(64, '0') + "\"}],";
         info.insert(info.begin() + 1, context.begin(), context.end());
       }},
      {"71_mean", set(SectionType::kProfile, 6, Half{0x7E00})},
      {"80_values", [](Parts* parts) { parts->sections.back().resize(parts->sections.back().size() + 64); }},
      // 5 rows of 8 codes of 4 bits come before the scales.
      {"90_scale",
       [](Parts* parts) { Patch(&parts->sections.back(), 5 * 4 + 2 * sizeof(RowScale), RowScale{0x7F80}); }},
  };
}

// Of everything that a reader does with a card from outside.
Status ReadAll(ByteSpan bytes) {
  QKV_ASSIGN_OR_RETURN(const Card card, Card::FromSpan(bytes));
  QKV_RETURN_IF_ERROR(card.VerifyDigests());
  for (const Side side : {Side::kKeys, Side::kValues}) {
    std::vector<Half> rows(card.tokens() * card.shape(0).row_values(side));
    QKV_RETURN_IF_ERROR(card.Unpack(ScalarKernels(), 0, side, card.tokens(), rows.data()));
  }
  return {};
}

class GoldenRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(GoldenRefusalTest, IsNamedAsWritten) {
  const std::string path = std::string(QKV_SOURCE_DIR) + "/tests/golden/invalid/" + GetParam().name;
  ASSERT_TRUE(ReadAll(MakeSmall()).ok());
  card_test::Parts parts(MakeSmall());
  GetParam().change(&parts);
  std::vector<uint8_t> bytes = parts.Assemble();
  GetParam().damage(&bytes);
  const std::string text = Golden(path, bytes, ReadAll(bytes).message() + "\n");
  const MappedFile file = *MappedFile::Open(path + ".card");
  EXPECT_LT(file.bytes().size(), 4096u);
  EXPECT_EQ(ReadAll(file.bytes()).message() + "\n", text);
  EXPECT_NE(text.find(fmt::format("(rule {}", std::stoi(GetParam().name))), std::string::npos) << text;
  ExpectSameBytes(file, bytes);
}

INSTANTIATE_TEST_SUITE_P(Cards, GoldenRefusalTest, testing::ValuesIn(Refusals()),
                         [](const auto& refusal) { return std::string(refusal.param.name); });

}  // namespace
}  // namespace qkvshare
