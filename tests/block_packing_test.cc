// A sequence that is packed block by block, by means and scales (and the metric that keys are rounded in) that were
// measured before, is the card of all of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "card/card_flatten.h"
#include "card/card_test_util.h"
#include "policy/key_metrics.h"
#include "quant/kv_rows.h"
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
  SharedCard Pack(const KvView& kv, size_t block, const KeyMetrics& metrics = {}) const {
    std::vector<SharedCard> cards;
    for (size_t first = 0; first < kTokens; first += block) {
      const size_t end = std::min(first + block, kTokens);
      CardContent content = first == 0
                                ? card_test::Content(end)
                                : card_test::DeltaContent(*cards.back(), static_cast<uint32_t>(first), end - first);
      content.profile.kind = ProfileKind::kStatic;
      content.profile.id.fill(0x44);
      const BitPlan plan = UniformPlan(end - first, {4, 2}, first < kSinkTokens ? kSinkTokens - first : 0);
      const PackedCard packed = Take(qkvshare::PackCard(RowsIn(kv, first, end), plan, profiles_, content, 1, metrics));
      cards.push_back(std::make_shared<const Card>(Take(Card::FromBytes(packed.Bytes()))));
    }
    return std::make_shared<const Card>(Take(Card::FromBytes(Take(FlattenCards(cards, 1)).Bytes())));
  }
  // Bit tables, and values to the bit.
  static void ExpectSame(const Card& a, const Card& b) {
    ASSERT_EQ(a.tokens(), b.tokens());
    for (size_t t = 0; t < a.tokens(); ++t) EXPECT_EQ(a.plan().level(t), b.plan().level(t));
    for (size_t layer = 0; layer < a.layers(); ++layer) {
      for (const Side side : {Side::kKeys, Side::kValues})
        EXPECT_EQ(card_test::UnpackSide(a, layer, side, kTokens), card_test::UnpackSide(b, layer, side, kTokens));
    }
  }
  // Sum of the differences of all values, over the sum of their sizes.
  static float Difference(const Card& a, const Card& b) {
    float difference = 0, size = 0;
    for (size_t layer = 0; layer < a.layers(); ++layer) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        const std::vector<Half> ours = card_test::UnpackSide(a, layer, side, kTokens);
        const std::vector<Half> theirs = card_test::UnpackSide(b, layer, side, kTokens);
        for (size_t i = 0; i < ours.size(); ++i) {
          difference += std::fabs(HalfToFloat(ours[i]) - HalfToFloat(theirs[i]));
          size += std::fabs(HalfToFloat(theirs[i]));
        }
      }
    }
    return difference / size;
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

TEST_F(BlockPackingTest, GivesTheSameInOneMetric) {
  const auto session = MakeSession(*model_);
  PrefillOptions prefill;
  KeepForPacking(*session, &prefill);
  ASSERT_TRUE(session->Prefill(SomeTokens(kTokens, 99), prefill).ok());
  const KeyMetrics metrics =
      Take(MeasureKeyMetrics(Take(session->TakeKv()).view(), profiles_, session->window(), /*threads=*/1));
  const KvState rows = Read(SomeTokens(kTokens), kTokens);
  const SharedCard whole = Pack(rows.view(), kTokens, metrics);
  for (const size_t block : {16, 37}) ExpectSame(*Pack(rows.view(), block, metrics), *whole);
  EXPECT_GT(Difference(*whole, *Pack(rows.view(), kTokens)), 0.01f);  // rounded in another way
}

// The session decodes 64 tokens a call. Fed in other calls, llama.cpp rounds rows otherwise: the bit table is the same,
// and values are up to that.
TEST_F(BlockPackingTest, GivesTheSameHoweverItWasFed) {
  const std::vector<int32_t> tokens = SomeTokens(kTokens);
  const SharedCard whole = Pack(Read(tokens, kTokens).view(), kTokens);
  for (const size_t piece : {64, 128}) {
    SCOPED_TRACE(piece);
    ExpectSame(*Pack(Read(tokens, piece).view(), piece), *whole);
  }
  for (const size_t piece : {1, 20}) {
    const SharedCard other = Pack(Read(tokens, piece).view(), 16);
    for (size_t t = 0; t < kTokens; ++t) EXPECT_EQ(other->plan().level(t), whole->plan().level(t));
    EXPECT_LT(Difference(*other, *whole), 0.01f) << piece;
  }
}

}  // namespace
}  // namespace qkvshare
