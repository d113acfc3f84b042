// A part of a card: the same bytes as if its rows had been packed alone, and what the card says of them.
#include "card/card_slice.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "card/card_test_util.h"
#include "quant/kv_rows.h"

namespace qkvshare {
namespace {

using card_test::UnpackSide;

class SliceTest : public testing::Test {
 protected:
  static constexpr uint32_t kTokens = 101;
  // First token, and how many: within tiles and across them, one, and all.
  static constexpr std::pair<uint32_t, uint32_t> kParts[] = {{0, 101}, {0, 1},  {100, 1}, {0, 16}, {16, 32},
                                                             {3, 30},  {5, 96}, {31, 2},  {48, 53}};

  Card Pack(const BitPlan& plan) const {
    return *Card::FromBytes(PackCard(kv_.view(), plan, profiles_, content_, 1)->Bytes());
  }
  static Card Slice(const Card& card, uint32_t first, uint32_t tokens) {
    return *Card::FromBytes(SliceCard(card, first, tokens, 2)->Bytes());
  }

  const card_test::SyntheticKv kv_{kTokens, {{2, 64, 32}, {1, 24, 40}}, 7};
  const KeyProfiles profiles_ = MeasureKeyProfiles(kv_.view(), kSinkTokens, 1);
  CardContent content_ = card_test::RichContent(kTokens);
  BitPlan plan_ = card_test::MixedPlan(kTokens);
};

TEST_F(SliceTest, HasTheBytesOfItsRowsPackedAlone) {
  for (const std::vector<LayerAdjustment>& layers :
       {std::vector<LayerAdjustment>(), std::vector<LayerAdjustment>{{0, 0}, {1, -1}}}) {
    plan_.layers = layers;
    const Card card = Pack(plan_);
    for (const auto& [first, tokens] : kParts) {
      SCOPED_TRACE(std::to_string(first) + ", " + std::to_string(tokens));
      const Card part = Slice(card, first, tokens);
      EXPECT_TRUE(part.VerifyDigests().ok());
      ASSERT_EQ(part.tokens(), tokens);
      for (uint32_t t = 0; t < tokens; ++t) EXPECT_EQ(part.plan().level(t), card.plan().level(first + t));
      const KvView rows = RowsIn(kv_.view(), first, first + tokens);
      const Card alone =
          *Card::FromBytes(PackCard(rows, part.plan(), profiles_, card_test::Content(tokens), 1)->Bytes());
      for (size_t layer = 0; layer < card.layers(); ++layer) {
        EXPECT_EQ(part.plan().adjustment(layer), card.plan().adjustment(layer));
        for (const Side side : {Side::kKeys, Side::kValues}) {
          const ByteSpan ours = part.block(layer, side, 0);
          const ByteSpan theirs = alone.block(layer, side, 0);
          EXPECT_TRUE(std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end()));
          std::vector<Half> all = UnpackSide(card, layer, side, first + tokens);
          all.erase(all.begin(), all.begin() + static_cast<ptrdiff_t>(first * card.shape(layer).row_values(side)));
          EXPECT_EQ(UnpackSide(part, layer, side, tokens), all);
        }
      }
    }
  }
}

TEST_F(SliceTest, SaysWhatTheCardSaysOfTheseTokens) {
  content_.info.segments = {{"system", "a", "", 0, 25, {{"b", 1}}}, {"user", "b", std::string(64, 'e'), 25, 76}};
  content_.anchors = {{7, 0.5f}, {119, 0.25f}, {120, 0.125f}, {129, 0.5f}, {130, 1.0f}};
  content_.info.context = {{content_.parent, 100}};
  for (size_t i = 0; i < kTokens; ++i) content_.positions[i] = static_cast<int32_t>(100 + i);
  const Card card = Pack(plan_);
  const Card part = Slice(card, 20, 10);
  const std::string id = ToHex(card.content_id());
  EXPECT_FALSE(part.has_parent());
  EXPECT_EQ(part.first_token(), 0u);
  EXPECT_TRUE(part.info().context.empty());
  EXPECT_EQ(part.position_offset(), 120) << "where it lay";
  EXPECT_TRUE(std::equal(part.token_ids().begin(), part.token_ids().end(), card.token_ids().begin() + 20));
  EXPECT_EQ(part.info().segments,
            (std::vector<Segment>{{"system", "a", id, 0, 5, {{"b", 1}}}, {"user", "b", std::string(64, 'e'), 5, 5}}));
  const std::vector<Anchor> anchors = {{0, 0.125f}, {9, 0.5f}};
  EXPECT_TRUE(std::equal(anchors.begin(), anchors.end(), part.anchors().begin(), part.anchors().end()));
  EXPECT_EQ(part.info().policy, "tokens 20 to 29 of card " + id.substr(0, 12) + ": mixed");
  EXPECT_EQ(part.hop(), card.hop());
  EXPECT_EQ(part.info().sender, card.info().sender);
  EXPECT_EQ(part.info().created, card.info().created);
  EXPECT_EQ(part.info().features, card.info().features);
  EXPECT_EQ(part.identity(), card.identity());
  EXPECT_EQ(part.window(0), 512u);
  EXPECT_EQ(part.profile(), card.profile()) << "a static one";
  EXPECT_EQ(part.key_profiles(), profiles_);
  EXPECT_EQ(SliceCard(card, 20, 10, 1)->Bytes(), SliceCard(card, 20, 10, 3)->Bytes());
}

TEST_F(SliceTest, AProfileThatWasInheritedIsItsOwnNow) {
  content_.profile = {ProfileKind::kInherited, {}};
  const Card part = Slice(Pack(plan_), 20, 10);
  EXPECT_EQ(part.profile(), (ProfileSource{ProfileKind::kMeasured, {}}));
  EXPECT_EQ(part.key_profiles(), profiles_);
}

TEST_F(SliceTest, ExactAndProtectedTokensAreThoseThatItHas) {
  content_.exact_tokens = 4;
  content_.protected_tokens = 10;
  const Card card = Pack(plan_);
  const auto counts = [&](uint32_t first, uint32_t tokens) {
    const Card part = Slice(card, first, tokens);
    return std::pair(part.exact_tokens(), part.protected_tokens());
  };
  EXPECT_EQ(counts(0, 101), (std::pair{4u, 10u}));
  EXPECT_EQ(counts(0, 3), (std::pair{3u, 0u}));
  EXPECT_EQ(counts(1, 50), (std::pair{3u, 0u}));
  EXPECT_EQ(counts(4, 87), (std::pair{0u, 0u}));
  EXPECT_EQ(counts(50, 42), (std::pair{0u, 1u}));
  EXPECT_EQ(counts(95, 6), (std::pair{0u, 6u}));
}

TEST_F(SliceTest, APartOfAPartIsThatPartOfTheCard) {
  const Card card = Pack(plan_);
  const Card once = Slice(card, 30, 12), twice = Slice(Slice(card, 10, 60), 20, 12);
  for (size_t layer = 0; layer < card.layers(); ++layer) {
    EXPECT_EQ(UnpackSide(twice, layer, Side::kKeys, 12), UnpackSide(once, layer, Side::kKeys, 12));
    EXPECT_EQ(UnpackSide(twice, layer, Side::kValues, 12), UnpackSide(once, layer, Side::kValues, 12));
  }
  EXPECT_EQ(twice.positions().front(), once.positions().front());
  EXPECT_EQ(twice.info().segments, once.info().segments) << "where the text came from";
}

TEST_F(SliceTest, TokensThatTheCardDoesNotHaveAreRefused) {
  const Card card = Pack(plan_);
  for (const auto& [first, tokens] :
       {std::pair{0u, 0u}, {0u, 102u}, {101u, 1u}, {100u, 2u}, {1u, UINT32_MAX}, {UINT32_MAX, 1u}}) {
    const Status status = SliceCard(card, first, tokens, 1).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("of a card of 101"), std::string::npos) << status.message();
  }
}

TEST_F(SliceTest, RowsThatNoReaderTakesAreNotCopied) {
  const Card good = Pack(UniformPlan(kTokens, {4, 4}, 0));
  card_test::Parts parts(std::vector<uint8_t>(good.bytes().begin(), good.bytes().end()));
  const BlockLayout layout = good.layout(1, Side::kValues);
  card_test::Patch(&parts.sections.back(), layout.scales_offset + 50 * sizeof(RowScale), RowScale{0x7F80});
  const Card card = *Card::FromBytes(parts.Assemble());
  EXPECT_TRUE(SliceCard(card, 0, 50, 1));
  EXPECT_TRUE(SliceCard(card, 51, 50, 1));
  const Status status = SliceCard(card, 40, 20, 1).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("the packed values of token 50 are out of range"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace qkvshare
