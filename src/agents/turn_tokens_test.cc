#include "agents/turn_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "card/card_test_util.h"

namespace qkvshare {
namespace {

TEST(TurnTokensTest, AreThoseOfTheCard) {
  const card_test::SyntheticKv kv(21, {{2, 64, 32}}, 1);
  const BitPlan plan = card_test::MixedPlan(21);
  CardContent content = card_test::RichContent(21);
  content.windows = {0};
  content.info.segments = {{"system", "a", "", 0, 4}, {"user", "a", "", 4, 16}, {"generated", "a", "", 20, 1}};
  const KvView view = kv.view();
  const Result<PackedCard> packed = PackCard(view, plan, MeasureKeyProfiles(view, 0, 1), content, 1);
  ASSERT_TRUE(packed) << packed.status().message();
  const Result<Card> card = Card::FromBytes(packed->Bytes());
  ASSERT_TRUE(card) << card.status().message();

  const TurnTokens tokens = ReadTurnTokens(*card, [](int32_t token) { return "<" + std::to_string(token) + ">"; });
  ASSERT_EQ(tokens.texts.size(), 21U);
  ASSERT_EQ(tokens.levels.size(), 21U);
  EXPECT_EQ(tokens.texts[2], "<74>");
  for (size_t i = 0; i < 21; ++i) EXPECT_EQ(tokens.levels[i], plan.level(i)) << i;
  ASSERT_EQ(tokens.segments.size(), 3U);
  EXPECT_EQ(tokens.segments[1].role, "user");
  EXPECT_EQ(tokens.segments[1].tokens, 16U);
  EXPECT_EQ(tokens.anchors, (std::vector<Anchor>{{3, 0.25f}, {120, 1.0f}}));
}

}  // namespace
}  // namespace qkvshare
