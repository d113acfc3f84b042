// One card of a chain: the same bytes as if the rows had been packed as one, and the same facts.
#include "card/card_flatten.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "card/card_test_util.h"
#include "card/format.h"
#include "quant/kv_rows.h"

namespace qkvshare {
namespace {

using card_test::UnpackSide;
using SharedCard = std::shared_ptr<const Card>;

SharedCard Share(const PackedCard& card) { return std::make_shared<const Card>(*Card::FromBytes(card.Bytes())); }

// A root of 37 tokens, of which the next card continues 30, then 21 and 50 tokens more.
class FlattenTest : public testing::Test {
 protected:
  static constexpr size_t kEnd = 101;

  FlattenTest() {
    root_content_ = card_test::Content(37);
    root_content_.info.segments = {{"system", "a", "", 0, 25, {{"b", 1}}}, {"user", "a", "", 25, 12}};
    root_content_.anchors = {{5, 0.25f}, {29, 0.125f}, {33, 0.5f}};  // the last one is left out with its token
    root_content_.info.features = {"attention"};
    for (size_t t = 0; t < third_plan_.tokens(); ++t) third_plan_.level_of_token[t] = static_cast<uint8_t>(t * t % 3);
  }

  std::vector<SharedCard> Chain() const {
    const KvView kv = kv_.view();
    const SharedCard root = Share(*PackCard(RowsIn(kv, 0, 37), root_plan_, profiles_, root_content_, 1));
    CardContent content = card_test::DeltaContent(*root, 30, 21);
    content.info.sender = "agent-b";
    content.info.features = {"attention", "prior"};
    content.anchors = {{5, 0.5f}, {40, 0.0625f}};
    const SharedCard second = Share(*PackCard(RowsIn(kv, 30, 51), second_plan_, profiles_, content, 1));
    content = card_test::DeltaContent(*second, 51, 50);
    content.info.sender = "agent-c";
    content.info.created = "2026-02-03T04:05:06Z";
    content.info.segments[0].parent = std::string(64, 'e');  // came with another card
    content.protected_tokens = 2;
    const SharedCard third = Share(*PackCard(RowsIn(kv, 51, kEnd), third_plan_, profiles_, content, 1));
    return {root, second, third};
  }

  static BitPlan WithPolicy(BitPlan plan, const std::string& policy) {
    plan.policy = policy;
    return plan;
  }
  static void Refused(const std::vector<SharedCard>& cards, StatusCode code, const std::string& says) {
    const Status status = FlattenCards(cards, 1).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
  }

  // 2-bit rows of sizes that are no multiple of 16 are padded.
  const card_test::SyntheticKv kv_{kEnd, {{2, 64, 32}, {1, 8, 72}, {3, 24, 40}}, 7};
  KeyProfiles profiles_ = MeasureKeyProfiles(RowsIn(kv_.view(), 0, 37), kSinkTokens, 1);
  BitPlan root_plan_ = card_test::MixedPlan(37);
  BitPlan second_plan_ = WithPolicy(UniformPlan(21, {8, 4}, 0), "local");
  BitPlan third_plan_ = {"mixed", {{2, 8}, {4, 4}, {16, 2}}, std::vector<uint8_t>(50)};
  CardContent root_content_;
};

TEST_F(FlattenTest, HasTheBytesOfTheSameRowsPackedAsOne) {
  for (const std::vector<LayerAdjustment>& layers :
       {std::vector<LayerAdjustment>(), std::vector<LayerAdjustment>{{0, 0}, {1, -1}, {0, 2}}}) {
    root_plan_.layers = second_plan_.layers = third_plan_.layers = layers;
    const std::vector<SharedCard> chain = Chain();
    const SharedCard flat = Share(*FlattenCards(chain, 2));
    EXPECT_TRUE(flat->VerifyDigests().ok());
    ASSERT_EQ(flat->tokens(), kEnd);
    const KvView kv = kv_.view();
    const SharedCard whole = Share(*PackCard(kv, flat->plan(), profiles_, card_test::Content(kEnd), 1));
    for (size_t layer = 0; layer < flat->layers(); ++layer) {
      EXPECT_EQ(flat->shape(layer), kv_.shapes[layer]);
      EXPECT_EQ(flat->plan().adjustment(layer), chain[0]->plan().adjustment(layer));
      for (const Side side : {Side::kKeys, Side::kValues}) {
        for (size_t head = 0; head < flat->shape(layer).kv_heads; ++head) {
          const ByteSpan ours = flat->block(layer, side, head);
          const ByteSpan theirs = whole->block(layer, side, head);
          EXPECT_TRUE(std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end())) << layer << ", " << head;
        }
      }
    }
  }
}

TEST_F(FlattenTest, EachTokenUnpacksToTheSameBitsAtTheSameLevel) {
  const std::vector<SharedCard> chain = Chain();
  const SharedCard flat = Share(*FlattenCards(chain, 1));
  const size_t kept[] = {30, 21, 50};
  for (size_t layer = 0; layer < flat->layers(); ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      std::vector<Half> rows;
      for (size_t i = 0; i < chain.size(); ++i) {
        const std::vector<Half> part = UnpackSide(*chain[i], layer, side, kept[i]);
        rows.insert(rows.end(), part.begin(), part.end());
      }
      EXPECT_EQ(UnpackSide(*flat, layer, side, kEnd), rows) << layer << SideName(side);
    }
  }
  size_t token = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    for (size_t t = 0; t < kept[i]; ++t, ++token) EXPECT_EQ(flat->plan().level(token), chain[i]->plan().level(t));
  }
}

TEST_F(FlattenTest, SaysWhatTheCardsSaid) {
  const std::vector<SharedCard> chain = Chain();
  const Card flat = *Card::FromBytes(FlattenCards(chain, 1)->Bytes());
  EXPECT_FALSE(flat.has_parent());
  EXPECT_EQ(flat.first_token(), 0u);
  EXPECT_EQ(flat.hop(), 2u);
  EXPECT_EQ(flat.exact_tokens(), kSinkTokens);
  EXPECT_EQ(flat.protected_tokens(), 2u);
  EXPECT_EQ(flat.profile(), chain[0]->profile());
  EXPECT_EQ(flat.key_profiles(), profiles_);
  EXPECT_EQ(flat.identity(), chain[0]->identity());
  EXPECT_EQ(flat.positions().front(), 10);
  EXPECT_EQ(flat.positions().back(), 10 + static_cast<int32_t>(kEnd) - 1);
  EXPECT_EQ(flat.token_ids()[29], chain[0]->token_ids()[29]);
  EXPECT_EQ(flat.token_ids()[30], chain[1]->token_ids()[0]);
  EXPECT_EQ(flat.token_ids()[51], chain[2]->token_ids()[0]);
  EXPECT_EQ(flat.info().policy, "flattened: mixed; local");
  EXPECT_EQ(flat.info().features, (std::vector<std::string>{"attention", "prior"}));
  EXPECT_EQ(flat.info().sender, "agent-c");
  EXPECT_EQ(flat.info().created, "2026-02-03T04:05:06Z");
  const std::string root = ToHex(chain[0]->content_id());
  EXPECT_EQ(flat.info().segments, (std::vector<Segment>{{"system", "a", root, 0, 25, {{"b", 1}}},
                                                        {"user", "a", root, 25, 5},
                                                        {"prompt", "agent-a", ToHex(chain[1]->content_id()), 30, 21},
                                                        {"prompt", "agent-a", std::string(64, 'e'), 51, 50}}));
  const std::vector<Anchor> anchors = {{5, 0.5f}, {29, 0.125f}, {40, 0.0625f}};
  EXPECT_TRUE(std::equal(anchors.begin(), anchors.end(), flat.anchors().begin(), flat.anchors().end()));
  EXPECT_EQ(FlattenCards(chain, 1)->Bytes(), FlattenCards(chain, 3)->Bytes());
}

TEST_F(FlattenTest, AFlattenedCardCanBeContinuedAndFlattenedAgain) {
  const std::vector<SharedCard> chain = Chain();
  const SharedCard two = Share(*FlattenCards(std::span(chain).first(2), 1));
  const CardContent content = card_test::DeltaContent(*two, 51, 50);
  const SharedCard third = Share(*PackCard(RowsIn(kv_.view(), 51, kEnd), third_plan_, profiles_, content, 1));
  const SharedCard again[] = {two, third};
  const SharedCard all = Share(*FlattenCards(chain, 1));
  const SharedCard flat = Share(*FlattenCards(again, 1));
  for (const Side side : {Side::kKeys, Side::kValues}) {
    EXPECT_EQ(UnpackSide(*flat, 2, side, kEnd), UnpackSide(*all, 2, side, kEnd));
  }
  EXPECT_EQ(flat->info().segments[0].parent, ToHex(chain[0]->content_id())) << "where the text came from";
}

TEST_F(FlattenTest, OneCardStaysAsItIs) {
  const SharedCard root = Chain()[0];
  const SharedCard alone[] = {root};
  const SharedCard flat = Share(*FlattenCards(alone, 1));
  EXPECT_EQ(flat->plan().level_of_token, root->plan().level_of_token);
  for (size_t layer = 0; layer < root->layers(); ++layer) {
    const ByteSpan ours = flat->block(layer, Side::kValues, 0);
    const ByteSpan theirs = root->block(layer, Side::kValues, 0);
    EXPECT_TRUE(std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end()));
  }
}

TEST_F(FlattenTest, WhatIsNoChainIsRefused) {
  const std::vector<SharedCard> chain = Chain();
  Refused({}, StatusCode::kInvalidArgument, "no card");
  Refused({chain[1], chain[2]}, StatusCode::kInvalidArgument, "a chain starts with");
  Refused({chain[0], chain[2]}, StatusCode::kMismatch, "continues card " + ToHex(chain[1]->content_id()).substr(0, 12));
  Refused({chain[0], chain[0]}, StatusCode::kMismatch, "starts a context");
}

TEST_F(FlattenTest, CodesOfDifferentKindsAreRefusedButExactTokensAreOfEveryKind) {
  const std::vector<SharedCard> chain = Chain();
  const KvView rows = RowsIn(kv_.view(), 51, kEnd);
  CardContent content = card_test::DeltaContent(*chain[1], 51, 50);
  const auto third = [&](const BitPlan& plan, const KeyProfiles& profiles) {
    return std::vector<SharedCard>{chain[0], chain[1], Share(*PackCard(rows, plan, profiles, content, 1))};
  };
  BitPlan adjusted = third_plan_;
  adjusted.layers = {{0, 0}, {0, 1}, {0, 0}};
  Refused(third(adjusted, profiles_), StatusCode::kUnsupported, "different widths of layers");
  content.profile.kind = ProfileKind::kMeasured;
  const KeyProfiles own = MeasureKeyProfiles(rows, 0, 1);
  Refused(third(third_plan_, own), StatusCode::kUnsupported, "different means and scales");
  Refused(third(third_plan_, {}), StatusCode::kUnsupported, "different means and scales");
  const SharedCard flat = Share(*FlattenCards(third(UniformPlan(50, kExactLevel, 0), own), 1));
  EXPECT_EQ(flat->key_profiles(), profiles_);
  EXPECT_EQ(flat->profile().kind, ProfileKind::kMeasured);

  // An exact root leaves the profile to those after it.
  const SharedCard root =
      Share(*PackCard(RowsIn(kv_.view(), 0, 37), UniformPlan(37, kExactLevel, 0), {}, root_content_, 1));
  content = card_test::DeltaContent(*root, 37, 50);
  content.profile = {ProfileKind::kStatic, {}};
  content.profile.id.fill(0x55);
  const std::vector<SharedCard> late = {root, Share(*PackCard(rows, third_plan_, own, content, 1))};
  const SharedCard of_late = Share(*FlattenCards(late, 1));
  EXPECT_EQ(of_late->key_profiles(), own);
  EXPECT_EQ(of_late->profile(), content.profile);
}

TEST_F(FlattenTest, RowsThatNoReaderTakesAreNotCopied) {
  std::vector<SharedCard> chain = Chain();
  // The scales of the last block stand before its padding.
  card_test::Parts parts(std::vector<uint8_t>(chain[2]->bytes().begin(), chain[2]->bytes().end()));
  std::fill(parts.sections.back().end() - 128, parts.sections.back().end(), uint8_t{0xFF});
  chain[2] = std::make_shared<const Card>(*Card::FromBytes(parts.Assemble()));
  Refused(chain, StatusCode::kCorrupt, "layer 2: card " + ToHex(chain[2]->content_id()).substr(0, 12));
  Refused(chain, StatusCode::kCorrupt, "(rule 90): the packed values of token");
}

TEST(FlattenAnchorsTest, TheHeaviestAreKeptWhereThereAreTooMany) {
  const uint32_t tokens = card_format::kMaxAnchors;
  const card_test::SyntheticKv kv(tokens, {{1, 8, 8}}, 1);
  const BitPlan plan = UniformPlan(tokens, {2, 2}, 0);
  CardContent content = card_test::Content(tokens);
  for (uint32_t t = 0; t < tokens; ++t) content.anchors.push_back({t, t < 10 ? 0.0625f : 0.25f});
  const SharedCard root = Share(*PackCard(kv.view(), plan, {}, content, 1));
  content = card_test::DeltaContent(*root, tokens, tokens);
  content.anchors = {{3, 0.5f}, {tokens + 7, 0.125f}};
  const SharedCard chain[] = {root, Share(*PackCard(kv.view(), plan, {}, content, 1))};
  const SharedCard flat = Share(*FlattenCards(chain, 1));
  ASSERT_EQ(flat->anchors().size(), card_format::kMaxAnchors);
  EXPECT_EQ(flat->anchors()[3], (Anchor{3, 0.5f}));
  EXPECT_EQ(flat->anchors().back(), (Anchor{tokens + 7, 0.125f}));
  EXPECT_EQ(flat->anchors()[9], (Anchor{10, 0.25f})) << "one of the lightest went";
}

}  // namespace
}  // namespace qkvshare
