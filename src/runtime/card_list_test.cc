// Which cards may lie side by side in a context, and where.
#include "runtime/card_list.h"

#include <gtest/gtest.h>

#include "card/card_test_util.h"
#include "card/format.h"

namespace qkvshare {
namespace {

using SharedCard = std::shared_ptr<const Card>;
using Cards = std::vector<SharedCard>;
// First position in the context, and tokens.
using Places = std::vector<std::pair<uint32_t, uint32_t>>;

SharedCard Pack(CardContent content, uint32_t first_position, int32_t first_id) {
  for (size_t i = 0; i < content.positions.size(); ++i) {
    content.positions[i] = static_cast<int32_t>(first_position + i);
    content.token_ids[i] = first_id + static_cast<int32_t>(i);
  }
  const card_test::SyntheticKv kv(content.token_ids.size(), {{1, 8, 8}}, 1);
  const KvView view = kv.view();
  const BitPlan plan = UniformPlan(view.tokens, {4, 4}, 0);
  return std::make_shared<const Card>(*Card::FromBytes(PackCard(view, plan, {}, content, 1)->Bytes()));
}

SharedCard Root(size_t tokens, int32_t first_id) { return Pack(card_test::Content(tokens), 0, first_id); }

// Of `tokens` tokens that follow the parent's first ones.
SharedCard Delta(const Card& parent, uint32_t parents_tokens, size_t tokens, int32_t first_id) {
  const uint32_t first = parent.first_token() + parents_tokens;
  return Pack(card_test::DeltaContent(parent, first, tokens), first, first_id);
}

Places PlacesOf(std::span<const CardPart> parts) {
  Places places;
  for (const CardPart& part : parts) places.emplace_back(part.offset, part.tokens);
  return places;
}

Places Placed(const Cards& cards) {
  const Result<std::vector<CardPart>> parts = PlaceCards(cards);
  EXPECT_TRUE(parts) << parts.status().message();
  if (!parts) return {};
  const Status order = CheckCardList(*parts);
  EXPECT_TRUE(order.ok()) << order.message();
  return PlacesOf(*parts);
}

void Refused(const Cards& cards, StatusCode code, const std::string& says) {
  const Status status = PlaceCards(cards).status();
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
}

using Context = std::vector<ContextCard>;

Context Expected(const std::vector<std::pair<SharedCard, uint32_t>>& entries) {
  Context context;
  for (const auto& [card, tokens] : entries) context.push_back({card->content_id(), tokens});
  return context;
}

// A card of what follows the list.
SharedCard Joined(const std::vector<CardPart>& parts, size_t tokens) {
  CardContent content = card_test::Content(tokens);
  content.info.context = *ContextOf(parts);
  content.parent = parts.back().card->content_id();
  content.first_token = parts.back().end();
  content.hop = 1;
  return Pack(content, content.first_token, 0);
}
SharedCard Joined(const Cards& cards, size_t tokens) { return Joined(*PlaceCards(cards), tokens); }

class CardListTest : public testing::Test {
 protected:
  const SharedCard root_ = Root(10, 0), stranger_ = Root(5, 500);
  // Two agents that go on from all of the root, and one that does from a part of it.
  const SharedCard a_ = Delta(*root_, 10, 4, 100), b_ = Delta(*root_, 10, 6, 200), c_ = Delta(*root_, 9, 3, 300);
  const SharedCard a2_ = Delta(*a_, 4, 2, 110), b2_ = Delta(*b_, 5, 7, 210);
};

TEST_F(CardListTest, AChainLiesWhereItWasPacked) {
  EXPECT_EQ(Placed({root_, b_, b2_}), (Places{{0, 10}, {10, 5}, {15, 7}}));
  EXPECT_EQ(Placed({root_, c_}), (Places{{0, 9}, {9, 3}}));
  const std::vector<CardPart> parts = *PlaceCards(Cards{root_, b_, b2_});
  for (const CardPart& part : parts) EXPECT_EQ(part.shift(), 0);
}

TEST_F(CardListTest, SeveralCardsContinueOne) {
  const std::vector<CardPart> parts = *PlaceCards(Cards{root_, a_, b_, b2_});
  EXPECT_EQ(PlacesOf(parts), (Places{{0, 10}, {10, 4}, {14, 5}, {19, 7}}));
  EXPECT_EQ(parts[2].shift(), 4);
  EXPECT_EQ(parts[3].shift(), 4) << "moved with the card that it continues";
  EXPECT_EQ(Placed({root_, a_, b_, a2_}), (Places{{0, 10}, {10, 4}, {14, 6}, {20, 2}}));
  EXPECT_EQ(Placed({stranger_, root_, b_}), (Places{{0, 5}, {5, 10}, {15, 6}}));
  EXPECT_EQ(Placed({root_, c_, stranger_}), (Places{{0, 9}, {9, 3}, {12, 5}}));
}

TEST_F(CardListTest, WhatACardWasMadeOnMustBeThereJustAsItWas) {
  Refused({a_}, StatusCode::kMismatch, "give that card before it");
  Refused({a_, root_}, StatusCode::kMismatch, "give that card before it");
  Refused({root_, a_, b2_}, StatusCode::kMismatch, "continues card " + ToHex(b_->content_id()).substr(0, 12));
  Refused({root_, c_, a_}, StatusCode::kUnsupported, "was made on 10 tokens of card");
  Refused({root_, a_, c_}, StatusCode::kUnsupported, "was made on 9 tokens of card");
  Refused({root_, a_, c_}, StatusCode::kUnsupported, "of which there are 10 here");
  Refused({root_, b_, stranger_, b2_}, StatusCode::kUnsupported, "was made on 5 tokens of card");
  std::vector<CardPart> parts = {{root_, 0, 9}};
  EXPECT_EQ(AppendCard(a_, &parts).code(), StatusCode::kUnsupported);
  EXPECT_EQ(PlacesOf(parts), (Places{{0, 9}})) << "as it was";
  // A card that says it starts before its parent does.
  CardContent early = card_test::DeltaContent(*b2_, 16, 3);
  early.first_token = 3;
  Refused({root_, b_, b2_, Pack(early, 3, 0)}, StatusCode::kUnsupported, "was made on -12 tokens of card");
}

TEST_F(CardListTest, ACardSaysWhatItsContextWasWhereItsParentDoesNot) {
  const auto context = [](const std::vector<CardPart>& parts) { return *ContextOf(parts); };
  const auto of = [&](const Cards& cards) { return context(*PlaceCards(cards)); };
  EXPECT_EQ(of({root_}), Context());
  EXPECT_EQ(of({root_, b_, b2_}), Context());
  EXPECT_EQ(context({}), Context());
  EXPECT_EQ(of({root_, a_, b_}), Expected({{root_, 10}, {a_, 4}, {b_, 6}}));
  EXPECT_EQ(of({root_, a_, b_, b2_}), Expected({{root_, 10}, {a_, 4}, {b_, 5}, {b2_, 7}}));
  EXPECT_EQ(of({root_, stranger_}), Expected({{root_, 10}, {stranger_, 5}}));
  EXPECT_EQ(of({stranger_, root_, a_}), Expected({{stranger_, 5}, {root_, 10}, {a_, 4}}));
  EXPECT_EQ(context(FirstTokens(*PlaceCards(Cards{root_, a_, b_}), 16)), Expected({{root_, 10}, {a_, 4}, {b_, 2}}));
  EXPECT_EQ(context({{root_, 0, 4}, {stranger_, 4, 5}}), Expected({{root_, 4}, {stranger_, 5}}));
  // A card that starts elsewhere than at 0.
  const SharedCard late = Pack(card_test::Content(3), 7, 0);
  EXPECT_EQ(of({late}), Expected({{late, 3}}));
  // What follows a card that said it has no more to say, where that card lies as it was packed.
  const SharedCard joined = Joined({root_, a_, b_}, 3);
  EXPECT_EQ(of({root_, a_, b_, joined}), Context());
  EXPECT_EQ(of({root_, a_, b_, joined, Delta(*joined, 2, 4, 0)}), Context());
  EXPECT_EQ(of({root_, a_, b_, stranger_, joined}).size(), 5u);

  const std::vector<CardPart> gap = {{root_, 0, 10}, {stranger_, 11, 5}}, late_start = {{root_, 1, 10}};
  for (const std::vector<CardPart>& parts : {gap, late_start}) {
    EXPECT_EQ(ContextOf(parts).status().code(), StatusCode::kUnsupported);
  }
  std::vector<CardPart> many;
  for (uint32_t i = 0; i <= card_format::kMaxContextCards; ++i) many.push_back({stranger_, 5 * i, 5});
  EXPECT_EQ(ContextOf(many).status().code(), StatusCode::kUnsupported);
  many.pop_back();
  EXPECT_EQ(context(many).size(), card_format::kMaxContextCards);
}

TEST_F(CardListTest, ACardThatSaysItsContextGetsJustThat) {
  const SharedCard joined = Joined({root_, a_, b_}, 3);
  EXPECT_EQ(Placed({root_, a_, b_, joined}), (Places{{0, 10}, {10, 4}, {14, 6}, {20, 3}}));
  // Of a parent that is the last card fewer tokens, and of any card where the context has so.
  std::vector<CardPart> parts = FirstTokens(*PlaceCards(Cards{root_, a_, b_}), 16);
  const SharedCard cut = Joined(parts, 3);
  EXPECT_EQ(Placed({root_, a_, b_, cut}), (Places{{0, 10}, {10, 4}, {14, 2}, {16, 3}}));
  parts = {{root_, 0, 4}, {stranger_, 4, 3}};
  const SharedCard part = Joined(parts, 8);
  const std::vector<CardPart> placed = *PlaceCards(Cards{root_, stranger_, part});
  EXPECT_EQ(PlacesOf(placed), (Places{{0, 4}, {4, 3}, {7, 8}}));
  EXPECT_EQ(placed[1].shift(), 4);
  EXPECT_EQ(placed[2].shift(), 0);
  EXPECT_TRUE(CheckCardList(placed).ok());
  EXPECT_EQ(Placed({root_, stranger_, part, Delta(*part, 8, 2, 0)}), (Places{{0, 4}, {4, 3}, {7, 8}, {15, 2}}));

  // Among other cards it is moved, as long as all of its context is there.
  EXPECT_EQ(Placed({root_, a_, b_, joined, Joined({root_, a_, b_}, 2)}).back(), (std::pair{23u, 2u}));
  EXPECT_EQ(Placed({stranger_, root_, a_, b_, joined}).back(), (std::pair{25u, 3u}));
  EXPECT_EQ(Placed({stranger_, root_, a_, b_, cut}), (Places{{0, 5}, {5, 10}, {15, 4}, {19, 2}, {21, 3}}));
}

// The first tokens of a card and more of it, in contexts of contexts, in other orders and among other cards.
TEST_F(CardListTest, ACardHasAsManyTokensAsThoseAfterItHadOfIt) {
  const SharedCard other = Root(6, 700);
  const SharedCard j = Joined(std::vector<CardPart>{{root_, 0, 4}, {stranger_, 4, 5}, {other, 9, 6}}, 3);
  const std::vector<CardPart> context = {{other, 0, 6}, {root_, 6, 4}, {stranger_, 10, 5}, {j, 15, 2}};
  ASSERT_TRUE(CheckCardList(context).ok());
  const SharedCard k = Joined(context, 2);
  EXPECT_EQ(Placed({other, root_, stranger_, j, k}), (Places{{0, 6}, {6, 4}, {10, 5}, {15, 2}, {17, 2}}));
  EXPECT_EQ(Placed({other, root_, stranger_, j, k, Delta(*k, 1, 2, 0)}),
            (Places{{0, 6}, {6, 4}, {10, 5}, {15, 2}, {17, 1}, {18, 2}}));
  EXPECT_EQ(Placed({root_, other, stranger_, j, k}), (Places{{0, 4}, {4, 6}, {10, 5}, {15, 2}, {17, 2}}));
  EXPECT_EQ(Placed({root_, stranger_, other, j, stranger_, k}).front(), (std::pair{0u, 4u}));

  // The whole of a card as well: where it is there twice.
  Refused({other, root_, a_, stranger_, j, k}, StatusCode::kUnsupported, "made on 10 tokens");
  EXPECT_EQ(Placed({other, root_, stranger_, j, k, root_, a_}),
            (Places{{0, 6}, {6, 4}, {10, 5}, {15, 2}, {17, 2}, {19, 10}, {29, 4}}));
  const SharedCard both =
      Joined(std::vector<CardPart>{{root_, 0, 4}, {stranger_, 4, 5}, {root_, 9, 10}, {a_, 19, 4}}, 2);
  EXPECT_EQ(Placed({root_, stranger_, root_, a_, both}), (Places{{0, 4}, {4, 5}, {9, 10}, {19, 4}, {23, 2}}));
}

TEST_F(CardListTest, AContextThatIsNotThereIsRefused) {
  const SharedCard joined = Joined({root_, a_, b_}, 3);
  const std::string name = "card " + ToHex(joined->content_id()).substr(0, 12);
  Refused({joined}, StatusCode::kMismatch, name);
  Refused({root_, b_, joined}, StatusCode::kMismatch, "continues card " + ToHex(a_->content_id()).substr(0, 12));
  Refused({root_, a_, stranger_, joined}, StatusCode::kMismatch, name);
  const SharedCard twice = Joined({stranger_, stranger_}, 3);
  Refused({stranger_, twice}, StatusCode::kMismatch, "give that card before it");
  EXPECT_EQ(Placed({stranger_, stranger_, twice}).size(), 3u);
  // A context that leaves out what one of its own cards was made on.
  const SharedCard sinks = Joined(std::vector<CardPart>{{root_, 0, 4}, {a_, 4, 4}}, 3);
  Refused({root_, a_, sinks}, StatusCode::kUnsupported, "was made on 10 tokens");
  std::vector<CardPart> parts = *PlaceCards(Cards{root_, a_});
  EXPECT_EQ(AppendCard(sinks, &parts).code(), StatusCode::kUnsupported);
  EXPECT_EQ(PlacesOf(parts), (Places{{0, 10}, {10, 4}})) << "as it was";
  // One in which a card has more tokens than it has, and places that were given and are others.
  CardContent longer = card_test::Content(3);
  longer.info.context = {{stranger_->content_id(), 6}};
  longer.parent = stranger_->content_id();
  longer.first_token = 6;
  longer.hop = 1;
  Refused({stranger_, Pack(longer, 6, 0)}, StatusCode::kUnsupported, "was made on 6 tokens");
  parts = {{root_, 0, 10}, {stranger_, 20, 5}};
  ASSERT_TRUE(AppendCard(Joined({root_, stranger_}, 2), &parts).ok());
  EXPECT_EQ(PlacesOf(parts), (Places{{0, 10}, {20, 5}, {25, 2}}));
}

TEST_F(CardListTest, PlacesThatAreGivenAreChecked) {
  const auto check = [](const std::vector<CardPart>& parts) { return CheckCardOrder(parts).code(); };
  EXPECT_EQ(check({{root_, 0, 10}, {a_, 12, 4}, {b_, 20, 6}}), StatusCode::kOk) << "gaps are not forbidden";
  EXPECT_EQ(check({{root_, 0, 10}, {a_, 9, 4}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(check({{root_, 0, 9}, {a_, 9, 4}}), StatusCode::kUnsupported);
  EXPECT_EQ(check({{root_, 0, 0}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(check({{root_, 0, 11}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(check({{a_, 0, 4}}), StatusCode::kMismatch);
}

}  // namespace
}  // namespace qkvshare
