// Attention over attached cards, in sessions on tiny models: against llama.cpp's own attention, and against restoring
// the same card.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "card/card_test_util.h"
#include "runtime/inject.h"
#include "tests/fused_fixture.h"
#include "tests/shape_fixture.h"

namespace qkvshare {
namespace {

class FusedShapeTest : public ShapeFixture<FusedFixture> {};

TEST_P(FusedShapeTest, AnExactCardGivesWhatLlamaCppGivesAndAPackedOneWhatItsRestoreGives) {
  const auto fused = MakeSession(*model_, FusedOptions());
  ASSERT_TRUE(fused->fused().ok()) << fused->fused().message();
  for (const double bits : {16.0, 8.0, 4.0}) {
    const auto restored = MakeSession(*model_);
    ASSERT_TRUE(Restore(PackCard(*sender_, bits), prefix_.size(), restored.get()).ok());
    Prefill(restored.get(), suffix_);
    const Status status = fused->AttachCards({Place(PackCard(*sender_, bits))});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(fused->tokens(), prefix_);
    Prefill(fused.get(), suffix_);
    EXPECT_LT(RelativeError(Logits(*fused), Logits(*restored)), bits == 16.0 ? kExactError : kPackedError) << bits;
    Prefill(restored.get(), {7});
    Prefill(fused.get(), {7});
    EXPECT_LT(RelativeError(Logits(*fused), Logits(*restored)), bits == 16.0 ? kExactError : kPackedError) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FusedShapeTest, testing::ValuesIn(kShapes), ShapeName);

class FusedTest : public FusedFixture {
 protected:
  std::vector<float> LogitsAfter(Session* session, const std::vector<int32_t>& suffix, int sequence = 0) {
    const Status status = session->Prefill(suffix, {}, sequence);
    EXPECT_TRUE(status.ok()) << status.message();
    const float* logits = session->logits(sequence);
    return {logits, logits + model_->vocab_size()};
  }
};

TEST_F(FusedTest, TheFirstTokensOfACardAreThoseOfThatPrefix) {
  const auto fused = MakeSession(*model_, FusedOptions());
  const auto restored = MakeSession(*model_);
  ASSERT_TRUE(fused->AttachCards({Place(PackCard(*sender_, 8), 77)}).ok());
  ASSERT_TRUE(Restore(PackCard(*sender_, 8), 77, restored.get()).ok());
  EXPECT_EQ(fused->tokens(), restored->tokens());
  EXPECT_LT(RelativeError(LogitsAfter(fused.get(), suffix_), LogitsAfter(restored.get(), suffix_)), kPackedError);
}

TEST_F(FusedTest, AttachDetachAttach) {
  const auto fused = MakeSession(*model_, FusedOptions());
  const auto plain = MakeSession(*model_);
  const PlacedCard card = Place(PackCard(*sender_, 4));
  const std::vector<float> without = LogitsAfter(plain.get(), suffix_);
  ASSERT_TRUE(fused->AttachCards({card}).ok());
  const std::vector<float> with = LogitsAfter(fused.get(), suffix_);
  for (int i = 0; i < 3; ++i) {
    fused->Clear();
    EXPECT_EQ(LogitsAfter(fused.get(), suffix_), without) << "without a card, it is llama.cpp to the bit";
    ASSERT_TRUE(fused->AttachCards({card}).ok());
    EXPECT_EQ(LogitsAfter(fused.get(), suffix_), with);
  }
  EXPECT_GT(RelativeError(with, without), 0.1);
}

TEST_F(FusedTest, ThreadsChangeNothing) {
  const PlacedCard card = Place(PackCard(*sender_, 4));
  std::vector<float> expected;
  for (const int threads : {1, 2, 4}) {
    SessionOptions options = FusedOptions();
    options.threads = threads;
    const auto fused = MakeSession(*model_, options);
    ASSERT_TRUE(fused->AttachCards({card}).ok());
    const std::vector<float> logits = LogitsAfter(fused.get(), suffix_);
    if (threads == 1) expected = logits;
    EXPECT_EQ(logits, expected) << threads;
  }
}

TEST_F(FusedTest, TheContextIsCardAndOwnTokensButOnlyThoseTakeRows) {
  SessionOptions options = FusedOptions();
  options.context = 200;
  options.card_tokens = 150;
  const auto fused = MakeSession(*model_, options);
  EXPECT_EQ(fused->context(), 200u);
  EXPECT_FALSE(fused->CheckRoom(60).ok());
  ASSERT_TRUE(fused->AttachCards({Place(PackCard(*sender_, 4))}).ok());
  EXPECT_TRUE(fused->CheckRoom(200).ok());
  const Status status = fused->CheckRoom(201);
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("201 tokens needed, 200 available"), std::string::npos) << status.message();
  Prefill(fused.get(), SomeTokens(50, 9));
  EXPECT_EQ(fused->Prefill(SomeTokens(1), {}).code(), StatusCode::kOutOfRange);
}

TEST_F(FusedTest, TruncatingIntoTheCardKeepsItsFirstTokens) {
  const auto fused = MakeSession(*model_, FusedOptions());
  ASSERT_TRUE(fused->AttachCards({Place(PackCard(*sender_, 8))}).ok());
  Prefill(fused.get(), suffix_);
  ASSERT_TRUE(fused->Truncate(160).ok());
  EXPECT_EQ(fused->tokens().size(), 160u);
  ASSERT_TRUE(fused->Truncate(77).ok());
  EXPECT_EQ(fused->attached(), 77u);
  const std::vector<float> after = LogitsAfter(fused.get(), suffix_);
  ASSERT_TRUE(fused->AttachCards({Place(PackCard(*sender_, 8), 77)}).ok());
  EXPECT_EQ(after, LogitsAfter(fused.get(), suffix_));
}

// A hop's own tokens become a delta card; the next receiver takes both, fused or restored.
TEST_F(FusedTest, DeltaCardsContinueTheCardsThatWereReceived) {
  const auto first = std::make_shared<const Card>(PackCard(*sender_, 8));
  const std::shared_ptr<const Card> cards[] = {first};
  const std::vector<CardPart> parts = FirstTokens(Take(PlaceCards(cards)), 148);  // the seam took two tokens
  const auto middle = MakeSession(*model_, FusedOptions());
  EXPECT_EQ(Take(InjectCards(parts, InjectMode::kAuto, middle.get())).mode, InjectMode::kFused);
  Prefill(middle.get(), suffix_);
  const auto delta = std::make_shared<const Card>(PackCard(*middle, 8));
  EXPECT_EQ(delta->parent(), first->content_id());
  EXPECT_EQ(delta->first_token(), 148u);
  EXPECT_EQ(delta->position_offset(), 148);
  EXPECT_EQ(delta->hop(), 1u);
  EXPECT_TRUE(std::equal(suffix_.begin(), suffix_.end(), delta->token_ids().begin(), delta->token_ids().end()));

  const std::shared_ptr<const Card> both[] = {first, delta};
  const std::vector<CardPart> chain = Take(PlaceCards(both));
  const std::vector<int32_t> next = SomeTokens(5, 40);
  const std::vector<float> expected = LogitsAfter(middle.get(), next);
  for (const InjectMode mode : {InjectMode::kFused, InjectMode::kRestore}) {
    const auto last = MakeSession(*model_, FusedOptions());
    EXPECT_EQ(Take(InjectCards(chain, mode, last.get())).mode, mode);
    EXPECT_EQ(last->tokens().size(), 148 + suffix_.size());
    EXPECT_LT(RelativeError(LogitsAfter(last.get(), next), expected), kPackedError) << InjectModeName(mode);
  }

  const std::shared_ptr<const Card> alone[] = {delta};
  EXPECT_EQ(PlaceCards(alone).status().code(), StatusCode::kMismatch);
  const std::shared_ptr<const Card> reversed[] = {delta, first};
  EXPECT_EQ(PlaceCards(reversed).status().code(), StatusCode::kMismatch);
  const auto untouched = MakeSession(*model_, FusedOptions());
  Prefill(untouched.get(), next);
  const CardPart gap[] = {{delta, 148, 3}};
  EXPECT_FALSE(InjectCards(gap, InjectMode::kFused, untouched.get()).has_value());
  EXPECT_FALSE(InjectCards(gap, InjectMode::kRestore, untouched.get()).has_value());
  EXPECT_EQ(untouched->tokens(), next);
}

TEST_F(FusedTest, WhatIsInEffectIsReported) {
  const std::shared_ptr<const Card> cards[] = {std::make_shared<const Card>(PackCard(*sender_, 4))};
  const std::vector<CardPart> parts = Take(PlaceCards(cards));
  const auto plain = MakeSession(*model_);
  const Injection fallback = Take(InjectCards(parts, InjectMode::kAuto, plain.get()));
  EXPECT_EQ(fallback.mode, InjectMode::kRestore);
  EXPECT_EQ(fallback.reason, plain->fused().message());
  EXPECT_EQ(InjectCards(parts, InjectMode::kFused, plain.get()).status().message(), plain->fused().message());
  const auto fused = MakeSession(*model_, FusedOptions());
  EXPECT_EQ(Take(InjectCards(parts, InjectMode::kRestore, fused.get())).mode, InjectMode::kRestore);
  EXPECT_EQ(fused->attached(), 0u);
}

// Several receivers of one card in one session, with others' tokens in one decode call.
TEST_F(FusedTest, SequencesWithDifferentCardsKnowNothingOfEachOther) {
  SessionOptions options = FusedOptions();
  options.sequences = 3;
  const auto fused = MakeSession(*model_, options);
  const PlacedCard card = Place(PackCard(*sender_, 4));
  ASSERT_TRUE(fused->AttachCards({card}, 0).ok());
  ASSERT_TRUE(fused->AttachCards({card}, 2).ok());
  const std::vector<float> first = LogitsAfter(fused.get(), suffix_, 0);
  const std::vector<float> without = LogitsAfter(fused.get(), suffix_, 1);
  EXPECT_LT(RelativeError(LogitsAfter(fused.get(), suffix_, 2), first), 1e-3);
  const auto alone = MakeSession(*model_, FusedOptions());
  EXPECT_LT(RelativeError(without, LogitsAfter(alone.get(), suffix_)), 1e-3);
  fused->Clear(0);
  EXPECT_EQ(fused->attached(2), 150u);
  const std::vector<float> after = LogitsAfter(fused.get(), {9}, 2);
  ASSERT_TRUE(alone->AttachCards({card}).ok());
  LogitsAfter(alone.get(), suffix_);
  EXPECT_LT(RelativeError(after, LogitsAfter(alone.get(), {9})), 1e-3);
}

TEST_F(FusedTest, ACardThatIsOpenedTwiceIsReadOnce) {
  SessionOptions options = FusedOptions();
  options.sequences = 2;
  const auto fused = MakeSession(*model_, options);
  ASSERT_TRUE(fused->AttachCards({Place(PackCard(*sender_, 4))}, 0).ok());
  ASSERT_TRUE(fused->AttachCards({Place(PackCard(*sender_, 4))}, 1).ok());
  EXPECT_EQ(fused->cards(0).front().card, fused->cards(1).front().card);
  ASSERT_TRUE(fused->AttachCards({Place(PackCard(*sender_, 8))}, 1).ok());
  EXPECT_NE(fused->cards(0).front().card, fused->cards(1).front().card);
}

// Another card under its id.
TEST_F(FusedTest, ACardIsNotReadInPlaceOfOneThatClaimsItsId) {
  const Card card = PackCard(*sender_, 4);
  std::vector<uint8_t> forged(card.bytes().begin(), card.bytes().end());
  forged[static_cast<size_t>(card.block(0, Side::kValues, 0).data() - card.bytes().data())] ^= 1;
  card_test::Reseal(&forged);
  using card_format::FileHeader;
  std::memcpy(&forged[offsetof(FileHeader, content_id)], card.content_id().data(), card.content_id().size());
  std::vector<uint8_t> sealed(forged.begin(), forged.begin() + offsetof(FileHeader, checksum));
  const size_t table = (9 + 2 * card.layers()) * sizeof(card_format::SectionEntry);
  sealed.insert(sealed.end(), forged.begin() + sizeof(FileHeader),
                forged.begin() + static_cast<ptrdiff_t>(sizeof(FileHeader) + table));
  const uint64_t checksum = Xxh3(sealed);
  std::memcpy(&forged[offsetof(FileHeader, checksum)], &checksum, sizeof checksum);

  SessionOptions options = FusedOptions();
  options.sequences = 2;
  const auto fused = MakeSession(*model_, options);
  ASSERT_TRUE(fused->AttachCards({Place(Take(Card::FromBytes(std::move(forged))))}, 0).ok());
  ASSERT_TRUE(fused->AttachCards({Place(PackCard(*sender_, 4))}, 1).ok());
  const Card& theirs = fused->cards(0).front().card->card();
  const Card& ours = fused->cards(1).front().card->card();
  EXPECT_EQ(theirs.content_id(), ours.content_id());
  EXPECT_NE(&theirs, &ours);
}

TEST_F(FusedTest, WhatRulesItOutIsSaid) {
  SessionOptions options = FusedOptions();
  options.cache_type_k = CacheType::kQ8_0;
  const auto quantized = MakeSession(*model_, options);
  EXPECT_NE(quantized->fused().message().find("f16"), std::string::npos);
  options = FusedOptions();
  options.flash_attention = false;
  const auto slow = MakeSession(*model_, options);
  EXPECT_NE(slow->fused().message().find("flash attention"), std::string::npos);
  const Status status = slow->AttachCards({Place(PackCard(*sender_, 4))});
  EXPECT_EQ(status.message(), slow->fused().message());
  EXPECT_FALSE(MakeSession(*model_)->fused().ok());
}

}  // namespace
}  // namespace qkvshare
