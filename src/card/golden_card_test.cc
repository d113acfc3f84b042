// Golden cards: files in tests/golden/ that every reader must read the same for ever, each with a text of what it
// holds. The format is a draft until version 1: until then QKV_WRITE_GOLDEN=1 writes them anew, when the format has
// changed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

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

class GoldenCardTest : public testing::TestWithParam<const char*> {
 protected:
  std::string path_ = std::string(QKV_SOURCE_DIR) + "/tests/golden/" + GetParam();
};

TEST_P(GoldenCardTest, ReadsAsWritten) {
  const std::vector<uint8_t> packed = Make(GetParam());
  if (std::getenv("QKV_WRITE_GOLDEN") != nullptr) {  // NOLINT(concurrency-mt-unsafe)
    const std::string text = Describe(*Card::FromSpan(packed));
    ASSERT_TRUE(WriteFileAtomic(path_ + ".card", {packed}).ok());
    ASSERT_TRUE(WriteFileAtomic(path_ + ".txt", {{reinterpret_cast<const uint8_t*>(text.data()), text.size()}}).ok());
  }
  const Result<Card> card = Card::Open(path_ + ".card");
  ASSERT_TRUE(card) << card.status().message();
  EXPECT_TRUE(card->VerifyDigests().ok());
  EXPECT_EQ(Describe(*card), *ReadText(path_ + ".txt", 1 << 20));
  // The writer still makes the same bytes.
  const MappedFile file = *MappedFile::Open(path_ + ".card");
  EXPECT_TRUE(std::equal(packed.begin(), packed.end(), file.bytes().begin(), file.bytes().end()));
}

INSTANTIATE_TEST_SUITE_P(Cards, GoldenCardTest, testing::Values("every_level", "delta", "exact", "short"),
                         [](const auto& card) { return std::string(card.param); });

}  // namespace
}  // namespace qkvshare
