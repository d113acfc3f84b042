// A sequence that is packed block by block, by means and scales that were measured before, is the card of all of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "card/card_flatten.h"
#include "card/card_test_util.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

constexpr size_t kTokens = 180;
using SharedCard = std::shared_ptr<const Card>;

class BlockPackingTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    TinyModelSpec spec;
    spec.architecture = "qwen2";
    spec.half_matrices = false;
    model_ = LoadTiny(spec);
    profiles_ = MeasureKeyProfiles(Read(SomeTokens(kTokens, 99), kTokens).view(), kSinkTokens, 1);  // of other tokens
  }
  // Rows of these tokens, read in pieces.
  KvState Read(const std::vector<int32_t>& tokens, size_t piece) const {
    const auto session = MakeSession(*model_);
    for (size_t first = 0; first < tokens.size(); first += piece) {
      const size_t end = std::min(first + piece, tokens.size());
      EXPECT_TRUE(session->Prefill(std::span(tokens).subspan(first, end - first), {}).ok());
    }
    return Take(session->TakeKv());
  }
  // One card of cards of `block` tokens each.
  SharedCard Pack(const KvView& kv, size_t block) const {
    std::vector<SharedCard> cards;
    for (size_t first = 0; first < kTokens; first += block) {
      const size_t end = std::min(first + block, kTokens);
      CardContent content = first == 0
                                ? card_test::Content(end)
                                : card_test::DeltaContent(*cards.back(), static_cast<uint32_t>(first), end - first);
      content.profile.kind = ProfileKind::kStatic;
      content.profile.id.fill(0x44);
      const BitPlan plan = UniformPlan(end - first, {4, 2}, first == 0 ? kSinkTokens : 0);
      const PackedCard packed =
          Take(qkvshare::PackCard(card_test::RowsOf(kv, first, end), plan, profiles_, content, 1));
      cards.push_back(std::make_shared<const Card>(Take(Card::FromBytes(packed.Bytes()))));
    }
    return std::make_shared<const Card>(Take(Card::FromBytes(Take(FlattenCards(cards, 1)).Bytes())));
  }
  // Codes, scales and exact rows of both are the same to the bit.
  static void ExpectSame(const Card& a, const Card& b) {
    EXPECT_EQ(a.plan().level_of_token, b.plan().level_of_token);
    for (size_t layer = 0; layer < a.layers(); ++layer) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        for (size_t head = 0; head < a.shape(layer).kv_heads; ++head)
          EXPECT_TRUE(std::ranges::equal(a.block(layer, side, head), b.block(layer, side, head)))
              << layer << ", " << head;
      }
    }
  }

  std::unique_ptr<Model> model_;
  KeyProfiles profiles_;
};

TEST_F(BlockPackingTest, GivesTheCardOfAllTokensWhateverTheBlocks) {
  const KvState rows = Read(SomeTokens(kTokens), kTokens);
  const SharedCard whole = Pack(rows.view(), kTokens);
  for (const size_t block : {1, 16, 37, 64}) {
    SCOPED_TRACE(block);
    ExpectSame(*Pack(rows.view(), block), *whole);
  }
}

// llama.cpp multiplies whole blocks of four rows in one way, so that these rows are the same to the bit; others are up
// to rounding, and then the bit table still is.
TEST_F(BlockPackingTest, GivesTheSameHoweverItWasFed) {
  const std::vector<int32_t> tokens = SomeTokens(kTokens);
  const SharedCard whole = Pack(Read(tokens, kTokens).view(), kTokens);
  for (const size_t piece : {4, 20, 64}) {
    SCOPED_TRACE(piece);
    ExpectSame(*Pack(Read(tokens, piece).view(), piece), *whole);
  }
  const SharedCard one_by_one = Pack(Read(tokens, 1).view(), 16);
  EXPECT_EQ(one_by_one->plan().level_of_token, whole->plan().level_of_token);
  for (size_t layer = 0; layer < whole->layers(); ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const std::vector<Half> theirs = card_test::UnpackSide(*whole, layer, side, kTokens);
      const std::vector<Half> ours = card_test::UnpackSide(*one_by_one, layer, side, kTokens);
      size_t different = 0;
      for (size_t i = 0; i < ours.size(); ++i) different += ours[i] == theirs[i] ? 0 : 1;
      EXPECT_LT(different, ours.size() / 50) << layer << SideName(side);
    }
  }
}

}  // namespace
}  // namespace qkvshare
