// Chains of cards from sessions on tiny models: what each hop's card takes over from the one that it continues.
#include <gtest/gtest.h>

#include "card/card_flatten.h"
#include "card/static_profile.h"
#include "eval/fidelity.h"
#include "runtime/inject.h"
#include "tests/fused_fixture.h"

namespace qkvshare {
namespace {

using SharedCard = std::shared_ptr<const Card>;

SharedCard Share(Card card) { return std::make_shared<const Card>(std::move(card)); }

class ChainTest : public FusedFixture {
 protected:
  // A session that attends to the cards, with these tokens after them.
  std::unique_ptr<Session> Continue(const std::vector<SharedCard>& cards, const std::vector<int32_t>& tokens,
                                    InjectMode mode = InjectMode::kFused) const {
    auto session = MakeSession(*model_, FusedOptions());
    EXPECT_EQ(Take(InjectCards(Take(PlaceCards(cards)), mode, session.get())).mode, mode);
    if (!tokens.empty()) Prefill(session.get(), tokens);
    return session;
  }
  static Result<PackedCard> Pack(const Session& session, const PackOptions& options) {
    PackTimes times;
    return PackSession(session, options, &times);
  }
  static SharedCard Packed(const Session& session, const PackOptions& options) {
    return Share(Take(Card::FromBytes(Take(Pack(session, options)).Bytes())));
  }
  // The same rows, plan and place, but with means and scales of its own.
  static SharedCard WithOwnProfile(const Card& delta, const Session& session) {
    const KvState state = Take(session.TakeKv());
    const KvView kv = state.view();
    CardContent content;
    content.token_ids.assign(delta.token_ids().begin(), delta.token_ids().end());
    content.positions.assign(delta.positions().begin(), delta.positions().end());
    content.identity = delta.identity();
    content.info = delta.info();
    content.hop = delta.hop();
    content.parent = delta.parent();
    content.first_token = delta.first_token();
    content.exact_tokens = delta.exact_tokens();
    const KeyProfiles profiles = MeasureKeyProfiles(kv, content.exact_tokens, 1);
    return Share(Take(Card::FromBytes(Take(qkvshare::PackCard(kv, delta.plan(), profiles, content, 1)).Bytes())));
  }
};

// Mean squared error of the packed keys.
double KeyError(const Card& card, const Session& session) {
  const KvState state = Take(session.TakeKv());
  const KvView kv = state.view();
  double error = 0;
  size_t values = 0;
  for (size_t layer = 0; layer < card.layers(); ++layer) {
    std::vector<Half> rows(card.tokens() * card.shape(layer).row_values(Side::kKeys));
    const Status status = card.Unpack(ScalarKernels(), layer, Side::kKeys, card.tokens(), rows.data());
    EXPECT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < rows.size(); ++i) {
      const double difference = double{HalfToFloat(rows[i])} - double{HalfToFloat(kv.layers[layer].keys[i])};
      error += difference * difference;
    }
    values += rows.size();
  }
  return error / static_cast<double>(values);
}

TEST_F(ChainTest, ADeltaCardHasItsParentsProfileAndNoSinks) {
  const SharedCard root = Share(PackCard(*sender_, 4));
  const auto middle = Continue({root}, suffix_);
  const SharedCard delta = Share(PackCard(*middle, 4));
  EXPECT_EQ(root->profile().kind, ProfileKind::kMeasured);
  EXPECT_EQ(root->exact_tokens(), kSinkTokens);
  EXPECT_EQ(delta->profile(), (ProfileSource{ProfileKind::kInherited, {}}));
  EXPECT_EQ(delta->key_profiles(), root->key_profiles());
  EXPECT_EQ(delta->exact_tokens(), 0u);
  EXPECT_EQ(delta->plan().levels, (std::vector<Level>{{4, 4}}));
  const SharedCard next = Share(PackCard(*Continue({root, delta}, SomeTokens(3, 40)), 4));
  EXPECT_EQ(next->profile().kind, ProfileKind::kInherited);
  EXPECT_EQ(next->key_profiles(), root->key_profiles());
}

// The tokens that a profile was measured on are no others than those that follow, as far as keys go.
TEST_F(ChainTest, AnInheritedProfileLosesAtMostTwiceWhatAnOwnOneDoes) {
  for (const char* architecture : {"llama", "qwen2"}) {  // the latter with outliers in K
    SCOPED_TRACE(architecture);
    TinyModelSpec spec;
    spec.architecture = architecture;
    Use(spec);
    const SharedCard root = Share(PackCard(*sender_, 16));
    const auto middle = Continue({root}, SomeTokens(100, 3));
    const SharedCard delta = Share(PackCard(*middle, 4));
    const SharedCard own = WithOwnProfile(*delta, *middle);
    ASSERT_NE(own->key_profiles(), delta->key_profiles());
    EXPECT_GT(KeyError(*own, *middle), 0);
    EXPECT_LT(KeyError(*delta, *middle), 2 * KeyError(*own, *middle));
    const auto score = [&](const SharedCard& card) {
      return Take(ScoreTokens(Continue({root, card}, {}).get(), SomeTokens(200, 40), 0));
    };
    const LogitRows reference = score(Share(PackCard(*middle, 16)));
    const auto loss = [&](const SharedCard& card) {
      FidelityMeter meter;
      meter.Add(reference, score(card));
      return meter.Result().mean_kl;
    };
    EXPECT_GT(loss(own), 0);
    EXPECT_LT(loss(delta), 2 * loss(own));
  }
}

TEST_F(ChainTest, TheSinksOfAContextAreExactInWhateverCardTheyAre) {
  for (const size_t first : {1, 3, 4, 5}) {
    const auto sender = MakeSession(*model_, FusedOptions());
    Prefill(sender.get(), SomeTokens(first));
    const SharedCard root = Share(PackCard(*sender, 4));
    const auto middle = Continue({root}, SomeTokens(30, 3));
    const SharedCard delta = Share(PackCard(*middle, 4));
    const size_t sinks = first < kSinkTokens ? kSinkTokens - first : 0;
    EXPECT_EQ(delta->exact_tokens(), sinks) << first;
    for (size_t t = 0; t < delta->tokens(); ++t) {
      EXPECT_EQ(delta->plan().level(t) == kExactLevel, t < sinks) << first << ": " << t;
    }
  }
}

TEST_F(ChainTest, AProfileOfFewTokensIsNotInherited) {
  for (const size_t measured : {size_t{0}, size_t{1}, kProfileTokens - 1, kProfileTokens}) {
    const auto sender = MakeSession(*model_, FusedOptions());
    Prefill(sender.get(), SomeTokens(kSinkTokens + measured));
    const SharedCard root = Share(PackCard(*sender, 4));
    const SharedCard delta = Share(PackCard(*Continue({root}, suffix_), 4));
    const bool inherits = measured == kProfileTokens;
    EXPECT_EQ(delta->profile().kind, inherits ? ProfileKind::kInherited : ProfileKind::kMeasured) << measured;
    EXPECT_EQ(delta->key_profiles() == root->key_profiles(), inherits) << measured;
    const SharedCard chain[] = {root, delta};
    // Sinks alone are exact, and go with every profile.
    EXPECT_EQ(FlattenCards(chain, 1).has_value(), inherits || measured == 0) << measured;
  }
}

TEST_F(ChainTest, AnotherProfileThanTheParentsIsRefused) {
  StaticProfile profile;
  profile.identity = sender_->identity();
  profile.tokens = 1;
  profile.shapes = sender_->state_layout().shapes;
  profile.layers = {{0, 0}, {1, 0}};
  const KvState state = Take(sender_->TakeKv());
  profile.keys = MeasureKeyProfiles(state.view(), 70, 1);
  ASSERT_TRUE(WriteStaticProfile(Path("keys.profile"), &profile).ok());
  PackOptions options;
  options.profile = std::make_shared<const StaticProfile>(Take(OpenStaticProfile(Path("keys.profile"))));

  const auto measured = Continue({Share(PackCard(*sender_, 4))}, suffix_);
  const Status status = Pack(*measured, options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("leave it out"), std::string::npos) << status.message();

  // The parent's own is the one that is inherited, given or not, and so are the layers' widths.
  const SharedCard root = Packed(*sender_, options);
  EXPECT_EQ(root->profile().kind, ProfileKind::kStatic);
  const auto middle = Continue({root}, suffix_);
  const SharedCard given = Packed(*middle, options);
  const SharedCard left_out = Packed(*middle, {});
  for (const SharedCard& delta : {given, left_out}) {
    EXPECT_EQ(delta->profile().kind, ProfileKind::kInherited);
    EXPECT_EQ(delta->key_profiles(), options.profile->keys);
    EXPECT_EQ(delta->plan().layers, profile.layers);
  }
  options.layers = {{0, 1}, {0, 0}};
  EXPECT_EQ(Packed(*middle, options)->plan().layers, options.layers);
}

// Three hops with cuts at the seams, and windows of attention: one card of them is the same context.
TEST_F(ChainTest, AFlattenedChainIsTheSameContext) {
  for (const char* architecture : {"llama", "gemma3"}) {
    SCOPED_TRACE(architecture);
    TinyModelSpec spec;
    spec.architecture = architecture;
    spec.sliding_window = spec.architecture == "gemma3" ? 40 : 0;
    Use(spec);
    const SharedCard root = Share(PackCard(*sender_, 3));
    std::vector<SharedCard> chain = {root};
    const std::vector<CardPart> seam = FirstTokens(Take(PlaceCards(chain)), 147);
    const auto second = MakeSession(*model_, FusedOptions());
    Take(InjectCards(seam, InjectMode::kFused, second.get()));
    Prefill(second.get(), SomeTokens(61, 3));
    chain.push_back(Share(PackCard(*second, 5)));
    chain.push_back(Share(PackCard(*Continue(chain, SomeTokens(33, 90)), 4)));
    const std::vector<SharedCard> flat = {Share(Take(Card::FromBytes(Take(FlattenCards(chain, 1)).Bytes())))};
    EXPECT_EQ(TokensOf(Take(PlaceCards(flat))), TokensOf(Take(PlaceCards(chain))));

    // Restored, the rows are the same bytes, and so are the logits.
    const auto logits = [&](const std::vector<SharedCard>& cards, InjectMode mode) {
      return Logits(*Continue(cards, suffix_, mode));
    };
    EXPECT_EQ(logits(flat, InjectMode::kRestore), logits(chain, InjectMode::kRestore));
    EXPECT_LT(RelativeError(logits(flat, InjectMode::kFused), logits(chain, InjectMode::kFused)), kExactError);

    // And it can be continued as the chain can.
    const auto next = Continue(flat, suffix_);
    const SharedCard delta = Share(PackCard(*next, 4));
    EXPECT_EQ(delta->parent(), flat[0]->content_id());
    EXPECT_EQ(delta->key_profiles(), root->key_profiles());
    EXPECT_EQ(delta->hop(), 3u);
  }
}

}  // namespace
}  // namespace qkvshare
