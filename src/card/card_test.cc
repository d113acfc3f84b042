// Packing and reading back: every field, all shapes, files.
#include "card/card.h"

#include <gtest/gtest.h>

#include <cmath>

#include "card/card_test_util.h"
#include "card/card_writer.h"

namespace qkvshare {
namespace {

using card_test::Content;
using card_test::MixedPlan;
using card_test::SyntheticKv;

std::vector<uint8_t> PackBytes(const SyntheticKv& kv, const BitPlan& plan, const CardContent& content,
                               int threads = 1) {
  const KvView view = kv.view();
  const Result<PackedCard> packed =
      PackCard(view, plan, MeasureKeyProfiles(view, kSinkTokens, threads), content, threads);
  EXPECT_TRUE(packed) << packed.status().message();
  return packed ? packed->Bytes() : std::vector<uint8_t>{};
}

std::vector<Half> UnpackSide(const Card& card, size_t layer, Side side) {
  std::vector<Half> out(card.tokens() * card.shape(layer).row_values(side));
  const Status status = card.Unpack(ScalarKernels(), layer, side, card.tokens(), out.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

// Root mean square of the difference, in standard deviations of the synthetic rows (1).
double RmsError(const std::vector<Half>& a, const std::vector<Half>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(HalfToFloat(a[i]) - HalfToFloat(b[i]), 2.0);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

TEST(CardTest, EveryFieldComesBack) {
  const SyntheticKv kv(21, {{2, 64, 32}, {1, 8, 72}}, 1);
  CardContent content = card_test::RichContent(21);
  content.positions.back() = 1000;  // gaps are allowed
  content.identity.first_rope = {32, 2, 1e6f, 0.25f, 1.0f, 1.5f};
  content.info.model_name = "name with \"quotes\", \\ and \xC3\xBC";
  content.info.segments = {
      {"system", "a", "", 0, 4}, {"user", "b", std::string(64, 'f'), 4, 16}, {"generated", "", "", 20, 1}};
  content.info.segments[2].readers = {{"b", 1}, {"c", 7}};
  BitPlan plan = MixedPlan(21);
  plan.layers = {{1, -1}, {0, 3}};
  const Result<Card> card = Card::FromBytes(PackBytes(kv, plan, content));
  ASSERT_TRUE(card) << card.status().message();
  EXPECT_EQ(card->tokens(), 21u);
  EXPECT_EQ(card->layers(), 2u);
  EXPECT_EQ(card->shape(0), kv.shapes[0]);
  EXPECT_EQ(card->shape(1), kv.shapes[1]);
  EXPECT_TRUE(std::equal(card->token_ids().begin(), card->token_ids().end(), content.token_ids.begin()));
  EXPECT_TRUE(std::equal(card->positions().begin(), card->positions().end(), content.positions.begin()));
  EXPECT_EQ(card->position_offset(), 10);
  EXPECT_EQ(card->plan().levels, plan.levels);
  EXPECT_EQ(card->plan().level_of_token, plan.level_of_token);
  EXPECT_EQ(card->plan().layers, plan.layers);
  EXPECT_EQ(card->plan().policy, "mixed");
  EXPECT_EQ(card->order().token_at, OrderTokens(plan).token_at);
  content.info.policy = "mixed";
  EXPECT_EQ(card->info(), content.info);
  EXPECT_EQ(card->identity(), content.identity);
  EXPECT_EQ(card->hop(), 2u);
  EXPECT_TRUE(card->has_parent());
  EXPECT_EQ(card->parent(), content.parent);
  EXPECT_EQ(card->first_token(), 100u);
  EXPECT_EQ(card->protected_tokens(), 1u);
  EXPECT_EQ(card->profile(), content.profile);
  EXPECT_TRUE(
      std::equal(card->anchors().begin(), card->anchors().end(), content.anchors.begin(), content.anchors.end()));
  EXPECT_EQ(card->window(0), 512u);
  EXPECT_EQ(card->window(1), 0u);
  EXPECT_EQ(card->exact_tokens(), 0u);
  EXPECT_TRUE(card->VerifyDigests().ok());
  const KeyProfiles profiles = MeasureKeyProfiles(kv.view(), kSinkTokens, 1);
  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t head = 0; head < kv.shapes[layer].kv_heads; ++head) {
      EXPECT_EQ(card->key_profile(layer, head).mean, profiles[layer][head].mean);
      EXPECT_EQ(card->key_profile(layer, head).scale, profiles[layer][head].scale);
    }
  }
  EXPECT_EQ(card->key_profiles(), profiles);
}

TEST(CardTest, SizesAndBits) {
  const SyntheticKv kv(100, {{2, 64, 64}}, 2);
  const std::vector<uint8_t> bytes = PackBytes(kv, UniformPlan(100, {8, 4}, 4), Content(100));
  const Card card = *Card::FromSpan(bytes);
  EXPECT_EQ(card.file_bytes(), bytes.size());
  EXPECT_EQ(card.fp16_bytes(), 100u * 256 * 2);
  EXPECT_EQ(card.fp16_bytes(), kv.view().bytes());
  EXPECT_DOUBLE_EQ(card.average_code_bits(), (96 * 6.0 + 4 * 16.0) / 100);
  EXPECT_DOUBLE_EQ(card.average_total_bits(), static_cast<double>(bytes.size()) * 8 / (100 * 256));
  EXPECT_EQ(card.payload_bytes(), 2 * (card.layout(0, Side::kKeys).bytes + card.layout(0, Side::kValues).bytes));
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (size_t head = 0; head < 2; ++head) {
      const ByteSpan block = card.block(0, side, head);
      EXPECT_EQ(block.size(), card.layout(0, side).bytes);
      EXPECT_EQ((block.data() - bytes.data()) % 64, 0);
    }
  }
}

// Token counts around a tile, layers of different shapes, keys and values of different sizes.
TEST(CardTest, RowsComeBack) {
  for (const size_t tokens : {1u, 2u, 4u, 5u, 15u, 16u, 17u, 20u, 33u, 70u}) {
    const SyntheticKv kv(tokens, {{2, 64, 64}, {1, 128, 72}, {3, 8, 96}, {1, 80, 256}}, 3);
    for (const Level level : kLevels) {
      const Result<Card> card =
          Card::FromBytes(PackBytes(kv, UniformPlan(tokens, level, kSinkTokens), Content(tokens)));
      ASSERT_TRUE(card) << card.status().message();
      for (size_t layer = 0; layer < kv.shapes.size(); ++layer) {
        for (const Side side : {Side::kKeys, Side::kValues}) {
          const std::vector<Half>& rows = kv.rows[2 * layer + (side == Side::kKeys ? 0 : 1)];
          const std::vector<Half> out = UnpackSide(*card, layer, side);
          const size_t exact = std::min(tokens, kSinkTokens) * kv.shapes[layer].row_values(side);
          EXPECT_TRUE(std::equal(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(exact), out.begin()));
          const int bits = side == Side::kKeys ? level.key_bits : level.value_bits;
          // In standard deviations: 2 bits 0.35 of a Gaussian row, 4 bits 0.107, 8 bits 0.007 or so; twice that as
          // margin.
          const double bound = bits == 16 ? 0.0 : bits == 8 ? 0.02 : bits == 4 ? 0.21 : 0.7;
          EXPECT_LE(RmsError(rows, out), bound) << tokens << ", layer " << layer << LevelName(level);
        }
      }
    }
  }
}

// A layer that is adjusted is packed as if its levels had other widths: its rows and bytes are those of another plan.
TEST(CardTest, AdjustedLayersHaveTheirOwnWidths) {
  const SyntheticKv kv(40, {{2, 64, 64}, {2, 64, 64}}, 11);
  BitPlan adjusted = UniformPlan(40, {4, 4}, 4);
  adjusted.layers = {{0, 0}, {1, -1}};
  const Card card = *Card::FromBytes(PackBytes(kv, adjusted, Content(40)));
  const Card plain = *Card::FromBytes(PackBytes(kv, UniformPlan(40, {4, 4}, 4), Content(40)));
  const Card other = *Card::FromBytes(PackBytes(kv, UniformPlan(40, {8, 2}, 4), Content(40)));
  for (const Side side : {Side::kKeys, Side::kValues}) {
    EXPECT_EQ(UnpackSide(card, 0, side), UnpackSide(plain, 0, side));
    EXPECT_EQ(UnpackSide(card, 1, side), UnpackSide(other, 1, side));
    EXPECT_EQ(card.block(1, side, 1).size(), other.block(1, side, 1).size());
  }
  EXPECT_DOUBLE_EQ(card.average_code_bits(), (36 * (4 + 4 + 8 + 2) / 4.0 + 4 * 16) / 40);
}

TEST(CardTest, ExactCardsAreBitEqual) {
  const SyntheticKv kv(37, {{2, 64, 32}}, 4);
  const Card card = *Card::FromBytes(PackBytes(kv, UniformPlan(37, kExactLevel, 0), Content(37)));
  EXPECT_EQ(UnpackSide(card, 0, Side::kKeys), kv.rows[0]);
  EXPECT_EQ(UnpackSide(card, 0, Side::kValues), kv.rows[1]);
  EXPECT_DOUBLE_EQ(card.average_code_bits(), 16.0);
}

TEST(CardTest, PartialUnpackLeavesTheRestUntouched) {
  const SyntheticKv kv(20, {{2, 64, 32}}, 5);
  const Card card = *Card::FromBytes(PackBytes(kv, MixedPlan(20), Content(20)));
  const std::vector<Half> whole = UnpackSide(card, 0, Side::kValues);
  std::vector<Half> part(whole.size(), 0xBEEF);
  ASSERT_TRUE(card.Unpack(ScalarKernels(), 0, Side::kValues, 7, part.data()).ok());
  for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], i < 7 * 64 ? whole[i] : 0xBEEF) << i;
}

TEST(CardTest, PackingIsDeterministicForAnyNumberOfThreads) {
  const SyntheticKv kv(50, {{2, 64, 64}, {1, 128, 72}, {3, 8, 96}}, 6);
  const std::vector<uint8_t> one = PackBytes(kv, MixedPlan(50), Content(50), 1);
  EXPECT_EQ(PackBytes(kv, MixedPlan(50), Content(50), 1), one);
  for (const int threads : {2, 4, 7}) EXPECT_EQ(PackBytes(kv, MixedPlan(50), Content(50), threads), one) << threads;
}

TEST(CardTest, ContentIdFollowsTheContent) {
  const SyntheticKv kv(20, {{1, 64, 64}}, 7);
  const auto id = [&](const CardContent& content) {
    return Card::FromBytes(PackBytes(kv, MixedPlan(20), content))->content_id();
  };
  CardContent other = Content(20);
  other.token_ids[5] += 1;
  EXPECT_EQ(id(Content(20)), id(Content(20)));
  EXPECT_NE(id(other), id(Content(20)));
}

TEST(CardTest, WorksAtAnyAddress) {
  const SyntheticKv kv(20, {{1, 64, 64}}, 8);
  const std::vector<uint8_t> bytes = PackBytes(kv, MixedPlan(20), Content(20));
  std::vector<uint8_t> moved(bytes.size() + 1);
  std::copy(bytes.begin(), bytes.end(), moved.begin() + 1);
  const Card aligned = *Card::FromSpan(bytes);
  const Result<Card> odd = Card::FromSpan(ByteSpan(moved).subspan(1));
  ASSERT_TRUE(odd);
  EXPECT_EQ(UnpackSide(*odd, 0, Side::kKeys), UnpackSide(aligned, 0, Side::kKeys));
}

TEST(CardTest, MovedCardsKeepTheirBytes) {
  const SyntheticKv kv(20, {{1, 64, 64}}, 9);
  const std::vector<uint8_t> bytes = PackBytes(kv, MixedPlan(20), Content(20));
  std::vector<Half> rows;
  {
    Result<Card> card = Card::FromBytes(bytes);
    ASSERT_TRUE(card);
    const Card moved = *std::move(card);
    rows = UnpackSide(moved, 0, Side::kKeys);
  }
  EXPECT_EQ(rows, UnpackSide(*Card::FromSpan(bytes), 0, Side::kKeys));
}

}  // namespace
}  // namespace qkvshare
