// Several cards that continue one, side by side in one context: against llama.cpp, which moves rows by turning keys.
#include <gtest/gtest.h>

#include "base/file.h"
#include "card/card_chain.h"
#include "card/card_flatten.h"
#include "card/card_slice.h"
#include "llama.h"
#include "runtime/batch.h"
#include "runtime/inject.h"
#include "tests/fused_fixture.h"

namespace qkvshare {
namespace {

using SharedCard = std::shared_ptr<const Card>;
using Tokens = std::vector<int32_t>;

constexpr InjectMode kWays[] = {InjectMode::kFused, InjectMode::kRestore};

class ContextTest : public FusedFixture {
 protected:
  // A session with these cards, and tokens after them.
  std::unique_ptr<Session> Continue(const std::vector<SharedCard>& cards, const Tokens& tokens,
                                    InjectMode mode = InjectMode::kFused) const {
    auto session = MakeSession(*model_, FusedOptions());
    EXPECT_EQ(Take(InjectCards(Take(PlaceCards(cards)), mode, session.get())).mode, mode);
    if (!tokens.empty()) Prefill(session.get(), tokens);
    return session;
  }
  SharedCard CardOf(const std::vector<SharedCard>& cards, const Tokens& tokens, double bits) const {
    return std::make_shared<const Card>(PackCard(*Continue(cards, tokens), bits));
  }
  SharedCard Root(double bits) const { return std::make_shared<const Card>(PackCard(*sender_, bits)); }

  void Save(const std::vector<std::pair<std::string, SharedCard>>& cards) const {
    for (const auto& [name, card] : cards) {
      ASSERT_TRUE(WriteFileAtomic(Path(name + ".card"), {card->bytes()}).ok());
    }
  }
  // The card of this name, after all that it needs.
  std::vector<SharedCard> Found(const std::string& name) const {
    std::vector<SharedCard> cards;
    for (const ChainCard& link : Take(OpenWithParents({Path(name + ".card")}))) cards.push_back(link.card);
    return cards;
  }

  static void Decode(llama_context* llama, const Tokens& tokens, size_t first, int sequence) {
    for (size_t done = 0; done < tokens.size();) {
      Batch batch(64, sequence);
      for (size_t i = 0; i < 64 && done < tokens.size(); ++i, ++done)
        batch.Add(tokens[done], first + done, done + 1 == tokens.size());
      ASSERT_EQ(llama_decode(llama, batch.get()), 0);
    }
  }

  const Tokens a_ = SomeTokens(40, 17), b_ = SomeTokens(30, 101), b2_ = SomeTokens(25, 33);
};

// Two agents go on from one root; a third gets both, the second one's two cards moved to where the first one's end.
TEST_F(ContextTest, AMovedDeltaIsWhatItsRowsWouldBeThere) {
  for (const char* architecture : {"llama", "qwen2"}) {
    SCOPED_TRACE(architecture);
    TinyModelSpec spec;
    spec.architecture = architecture;
    Use(spec);
    SessionOptions options = SmallOptions();
    options.sequences = 2;
    const auto reference = MakeSession(*model_, options);
    llama_context* llama = reference->handle();
    llama_memory_t memory = llama_get_memory(llama);
    const auto moved_by = static_cast<llama_pos>(a_.size());
    Decode(llama, prefix_, 0, 0);
    llama_memory_seq_cp(memory, 0, 1, -1, -1);
    Decode(llama, a_, prefix_.size(), 0);
    Decode(llama, b_, prefix_.size(), 1);
    Decode(llama, b2_, prefix_.size() + b_.size(), 1);
    llama_memory_seq_add(memory, 1, 150, -1, moved_by);
    llama_memory_seq_cp(memory, 1, 0, 150 + moved_by, -1);
    Decode(llama, suffix_, prefix_.size() + a_.size() + b_.size() + b2_.size(), 0);
    const float* logits = llama_get_logits_ith(llama, -1);
    const std::vector<float> expected(logits, logits + model_->vocab_size());

    for (const double bits : {16.0, 8.0}) {
      const SharedCard root = Root(bits), a = CardOf({root}, a_, bits), b = CardOf({root}, b_, bits);
      const std::vector<SharedCard> cards = {root, a, b, CardOf({root, b}, b2_, bits)};
      for (const InjectMode mode : kWays) {
        EXPECT_LT(RelativeError(Logits(*Continue(cards, suffix_, mode)), expected),
                  bits == 16 ? kExactError : kPackedError)
            << bits << " bits, " << InjectModeName(mode);
      }
    }
  }
}

// A session whose cards lie side by side is packed, and goes on; from the card's file alone the same is to be had.
TEST_F(ContextTest, ACardOfWhatFollowsSeveralBringsThemAll) {
  for (const char* architecture : {"llama", "gemma3"}) {
    SCOPED_TRACE(architecture);
    TinyModelSpec spec;
    spec.architecture = architecture;
    spec.sliding_window = spec.architecture == "gemma3" ? 40 : 0;
    Use(spec);
    const SharedCard root = Root(16), a = CardOf({root}, a_, 16), b = CardOf({root}, b_, 16);
    const auto writer = Continue({root, a, b}, b2_);
    const SharedCard joined = std::make_shared<const Card>(PackCard(*writer, 16));
    EXPECT_EQ(joined->info().context,
              (std::vector<ContextCard>{{root->content_id(), 150}, {a->content_id(), 40}, {b->content_id(), 30}}));
    EXPECT_EQ(joined->parent(), b->content_id());
    EXPECT_EQ(joined->first_token(), 220u);
    EXPECT_EQ(joined->position_offset(), 220);
    EXPECT_EQ(joined->hop(), 2u);
    Save({{"r", root}, {"x", b}, {"y", a}, {"joined", joined}});
    Prefill(writer.get(), suffix_);
    const std::vector<float> expected = Logits(*writer);
    const Tokens said = Greedy(writer.get(), 8).tokens;

    const std::vector<SharedCard> found = Found("joined");
    ASSERT_EQ(found.size(), 4u);
    for (const InjectMode mode : kWays) {
      const auto reader = Continue(found, suffix_, mode);
      EXPECT_LT(RelativeError(Logits(*reader), expected), kExactError) << InjectModeName(mode);
      if (mode == InjectMode::kRestore)
        continue;  // keys that are turned are rounded anew: near ties may fall otherwise
      EXPECT_EQ(Greedy(reader.get(), 8).tokens, said);
    }
    // The next card needs no such list, and brings them too.
    const SharedCard next = CardOf(found, suffix_, 16);
    EXPECT_TRUE(next->info().context.empty());
    Save({{"next", next}});
    EXPECT_EQ(TokensOf(Take(PlaceCards(Found("next")))).size(), 265u);
    EXPECT_EQ(FlattenCards(Found("next"), 1).status().code(), StatusCode::kUnsupported);
  }
}

// Tokens of a card as one of their own lie where they lay, and are the same.
TEST_F(ContextTest, APartOfACardIsThatPart) {
  const SharedCard root = Root(4);
  const SharedCard part =
      std::make_shared<const Card>(Take(Card::FromBytes(Take(SliceCard(*root, 37, 81, 1)).Bytes())));
  const CardPart whole[] = {{root, 0, 118}}, parts[] = {{root, 0, 37}, {part, 37, 81}};
  EXPECT_EQ(parts[1].shift(), 0);
  const auto logits = [&](std::span<const CardPart> list, InjectMode mode) {
    const auto session = MakeSession(*model_, FusedOptions());
    Take(InjectCards(list, mode, session.get()));
    Prefill(session.get(), suffix_);
    return Logits(*session);
  };
  EXPECT_EQ(logits(parts, InjectMode::kRestore), logits(whole, InjectMode::kRestore));
  EXPECT_LT(RelativeError(logits(parts, InjectMode::kFused), logits(whole, InjectMode::kFused)), kExactError);
  // Alone it starts a context, moved to 0, and can be continued there.
  const SharedCard delta = CardOf({part}, suffix_, 4);
  EXPECT_EQ(delta->info().context, (std::vector<ContextCard>{{part->content_id(), 81}}));
  EXPECT_EQ(Take(PlaceCards(std::vector<SharedCard>{part, delta}))[0].shift(), -37);
}

// Attention sinks of one card, then others: a context may have a card's first tokens only.
TEST_F(ContextTest, AContextMayHaveTheFirstTokensOfACard) {
  const SharedCard root = Root(16);
  const auto stranger = MakeSession(*model_);
  Prefill(stranger.get(), a_);
  const SharedCard other = std::make_shared<const Card>(PackCard(*stranger, 16));
  const CardPart parts[] = {{root, 0, 4}, {other, 4, 33}};
  const auto writer = MakeSession(*model_, FusedOptions());
  Take(InjectCards(parts, InjectMode::kFused, writer.get()));
  Prefill(writer.get(), b_);
  const SharedCard joined = std::make_shared<const Card>(PackCard(*writer, 16));
  Save({{"r", root}, {"other", other}, {"joined", joined}});
  Prefill(writer.get(), suffix_);
  const std::vector<SharedCard> found = Found("joined");
  EXPECT_EQ(Take(PlaceCards(found)).back().end(), 67u);
  for (const InjectMode mode : kWays) {
    EXPECT_LT(RelativeError(Logits(*Continue(found, suffix_, mode)), Logits(*writer)), kExactError);
  }
}

// One card was made on the first tokens of another and on a third; the next on all of these in another order.
TEST_F(ContextTest, AFewTokensOfACardAreFoundAsSuchInContextsOfContexts) {
  const SharedCard root = Root(16);
  const auto alone = [&](const Tokens& tokens) {
    const auto session = MakeSession(*model_);
    Prefill(session.get(), tokens);
    return std::make_shared<const Card>(PackCard(*session, 16));
  };
  const SharedCard other = alone(a_);
  const auto after = [&](const std::vector<CardPart>& parts, const Tokens& tokens) {
    auto session = MakeSession(*model_, FusedOptions());
    Take(InjectCards(parts, InjectMode::kFused, session.get()));
    Prefill(session.get(), tokens);
    return session;
  };
  const SharedCard j = std::make_shared<const Card>(PackCard(*after({{root, 0, 4}, {other, 4, 40}}, b_), 16));
  const auto writer = after({{other, 0, 40}, {root, 40, 4}, {j, 44, 30}}, b2_);
  const SharedCard k = std::make_shared<const Card>(PackCard(*writer, 16));
  Save({{"r", root}, {"other", other}, {"j", j}, {"k", k}});
  Prefill(writer.get(), suffix_);
  const std::vector<SharedCard> found = Found("k");
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(TokensOf(Take(PlaceCards(found))).size(), 99u);
  for (const InjectMode mode : kWays) {
    EXPECT_LT(RelativeError(Logits(*Continue(found, suffix_, mode)), Logits(*writer)), kExactError)
        << InjectModeName(mode);
  }
}

}  // namespace
}  // namespace qkvshare
