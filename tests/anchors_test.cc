// What cards say of the context that they were made in, that of their parents included, from sessions on tiny models.
#include <gtest/gtest.h>

#include "policy/anchors.h"
#include "policy/token_costs.h"
#include "runtime/card_rows.h"
#include "runtime/inject.h"
#include "runtime/pack_text.h"
#include "tests/fused_fixture.h"

namespace qkvshare {
namespace {

using SharedCard = std::shared_ptr<const Card>;

SharedCard Share(Card card) { return std::make_shared<const Card>(std::move(card)); }

// Of the weights of all queries, heads and layers (of those with one window every layer_step-th, the last included),
// what each token gets: the formula, on rows of a whole context.
std::vector<double> Shares(const KvView& kv, const AttentionWindow& window, size_t layer_step = kAnchorLayerStep) {
  std::vector<double> shares(kv.tokens, 0.0);
  double rows = 0;
  for (size_t layer = 0; layer < kv.layers.size(); ++layer) {
    const LayerQueries& queries = window.layers[layer];
    const auto is_alike = [&](const LayerQueries& other) { return other.window == queries.window; };
    const std::span later = std::span(window.layers).subspan(layer + 1);
    if (static_cast<size_t>(std::ranges::count_if(later, is_alike)) % layer_step != 0) continue;
    const size_t group = queries.heads / kv.layers[layer].shape.kv_heads;
    for (size_t i = 0; i < window.queries() * queries.heads; ++i) {
      const HeadRows keys = kv.head(layer, Side::kKeys, i % queries.heads / group);
      const size_t end = window.last_visible[i / queries.heads] + size_t{1};
      const size_t first = queries.window > 0 && end > queries.window ? end - queries.window : 0;
      std::vector<double> weights(kv.tokens, 0.0);
      double sum = 0;
      for (size_t t = first; t < end; ++t) {
        double score = 0;
        for (size_t c = 0; c < keys.dim; ++c)
          score += double{queries.q[i * keys.dim + c]} * double{HalfToFloat(keys.row(t)[c])};
        score *= double{queries.scale};
        if (queries.softcap > 0) score = double{queries.softcap} * std::tanh(score / double{queries.softcap});
        sum += weights[t] = std::exp(score);
      }
      for (size_t t = first; t < end; ++t) shares[t] += weights[t] / sum;
      rows += 1;
    }
  }
  for (double& share : shares) share /= rows;
  return shares;
}

// Relative. Queries of a receiver that attends to cards differ from llama.cpp's own by some thousandths where the card
// is exact, and more where it is packed, since attention rounds queries then; so do scores.
constexpr double kTolerance = 0.04, kPackedTolerance = 0.1;

// That these are the tokens with the largest shares, whichever of nearly equal ones, and their shares.
void ExpectAnchors(std::span<const Anchor> anchors, const std::vector<double>& shares, double tolerance = kTolerance) {
  ASSERT_EQ(anchors.size(), std::min(kMostAnchors, shares.size() - kSinkTokens));
  std::vector<double> others = shares;
  double least = 1;
  for (const Anchor& anchor : anchors) {
    ASSERT_LT(anchor.token, shares.size());
    ASSERT_GE(anchor.token, kSinkTokens);
    EXPECT_NEAR(double{anchor.weight}, shares[anchor.token], tolerance * shares[anchor.token]) << anchor.token;
    least = std::min(least, double{anchor.weight});
    others[anchor.token] = 0;
  }
  EXPECT_LT(*std::max_element(others.begin() + kSinkTokens, others.end()), (1 + tolerance) * least);
}

class AnchorsTest : public FusedFixture {
 protected:
  static PrefillOptions Watched() {
    PrefillOptions prefill;
    prefill.window = kWindowTokens;
    prefill.window_stride = 4;
    return prefill;
  }
  // A session that has these cards and, after them, these tokens, watched.
  std::unique_ptr<Session> Continue(std::span<const CardPart> cards, const std::vector<int32_t>& tokens,
                                    InjectMode mode = InjectMode::kFused) const {
    auto session = MakeSession(*model_, FusedOptions());
    EXPECT_EQ(Take(InjectCards({cards.begin(), cards.end()}, mode, session.get())).mode, mode);
    const Status status = session->Prefill(tokens, Watched());
    EXPECT_TRUE(status.ok()) << status.message();
    return session;
  }
  static SharedCard Pack(const Session& session, Policy policy = Policy::kUniform, double bits = 16) {
    PackOptions options;
    options.policy = policy;
    options.code_bits = bits;
    PackTimes times;
    SharedCard card = Share(Take(Card::FromBytes(Take(PackSession(session, options, &times)).Bytes())));
    EXPECT_GT(times.plan_us, 0);
    EXPECT_EQ(times.anchors_us > 0, policy == Policy::kUniform && !card->anchors().empty());
    return card;
  }
  // Of what llama.cpp itself has after prefilling all of this, the last piece watched.
  std::vector<double> SharesOf(const std::vector<std::vector<int32_t>>& pieces,
                               size_t layer_step = kAnchorLayerStep) const {
    const auto session = MakeSession(*model_);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Status status = session->Prefill(pieces[i], i + 1 < pieces.size() ? PrefillOptions() : Watched());
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return Shares(Take(session->TakeKv()).view(), session->window(), layer_step);
  }
};

TEST_F(AnchorsTest, OfADeltaCardAreOfTheWholeContext) {
  for (const char* architecture : {"llama", "gemma3", "gemma2"}) {  // windows; the last also with a soft cap
    SCOPED_TRACE(architecture);
    TinyModelSpec spec;
    spec.architecture = architecture;
    spec.sliding_window = spec.architecture == "llama" ? 0 : 40;
    spec.layers = spec.architecture == "llama" ? 6 : 4;
    Use(spec);
    const SharedCard root = Pack(*sender_);
    EXPECT_TRUE(root->anchors().empty());  // no window, no anchors
    std::vector<CardPart> chain = {{root, 0, root->tokens()}};
    const auto middle = Continue(chain, suffix_);
    const SharedCard delta = Pack(*middle);
    ExpectAnchors(delta->anchors(), SharesOf({prefix_, suffix_}));
    EXPECT_LT(delta->anchors().front().token, root->tokens());
    EXPECT_GE(delta->anchors().back().token, root->tokens());
    // Policies that look at attention do so in all layers.
    ExpectAnchors(Pack(*middle, Policy::kLocal, 4)->anchors(), SharesOf({prefix_, suffix_}, 1));

    // The next hop, with a cut at the seam.
    chain.push_back({delta, delta->first_token(), 17});
    const std::vector<int32_t> next = SomeTokens(61, 90), middle_part(suffix_.begin(), suffix_.begin() + 17);
    const SharedCard last = Pack(*Continue(chain, next));
    EXPECT_EQ(last->first_token(), 167u);
    ExpectAnchors(last->anchors(), SharesOf({prefix_, middle_part, next}));
  }
}

// Cards of few bits: what is attended to is what was packed.
TEST_F(AnchorsTest, AreThoseOfTheRestoredRows) {
  const SharedCard root = Pack(*sender_, Policy::kUniform, 4);
  const std::vector<CardPart> parts = {{root, 0, 140}};
  const auto attached = Continue(parts, suffix_), restored = Continue(parts, suffix_, InjectMode::kRestore);
  ExpectAnchors(Pack(*attached)->anchors(), Shares(Take(restored->TakeKv()).view(), restored->window()),
                kPackedTolerance);
}

// Keys meet the queries at the place where the card lies now.
TEST_F(AnchorsTest, RowsOfAMovedCardAreTurned) {
  for (const char* architecture : {"llama", "gemma3"}) {
    SCOPED_TRACE(architecture);
    TinyModelSpec spec;
    spec.architecture = architecture;
    spec.sliding_window = spec.architecture == "llama" ? 0 : 40;
    spec.rope_base_window = 500.0F;
    Use(spec);
    const auto other = MakeSession(*model_);
    Prefill(other.get(), SomeTokens(45, 77));
    const SharedCard first = Pack(*sender_), second = Pack(*other);
    const std::vector<CardPart> parts = {{first, 0, 130}, {second, 130, 45}};
    const auto attached = Continue(parts, suffix_), restored = Continue(parts, suffix_, InjectMode::kRestore);
    const EarlierRows earlier = Take(RowsOfCards(parts, attached->card_context()));
    EXPECT_EQ(earlier.tokens, 175u);
    const KvState own = Take(attached->TakeKv());
    const AttentionStats stats = Take(MeasureAttention(own.view(), attached->window(), 2, &earlier));
    ExpectAnchors(MakeAnchors(stats), Shares(Take(restored->TakeKv()).view(), restored->window(), 1));

    // A list with a gap would give rows of other tokens: it is refused.
    const std::vector<CardPart> gap = {{first, 0, 130}, {second, 131, 45}}, late = {{second, 3, 45}};
    for (const auto& wrong : {gap, late})
      EXPECT_EQ(RowsOfCards(wrong, attached->card_context()).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(Take(RowsOfCards({}, attached->card_context())).tokens, 0u);
  }
}

TEST_F(AnchorsTest, CountInTheBytesOfACard) {
  const SharedCard root = Pack(*sender_, Policy::kUniform, 4);
  const std::vector<CardPart> parts = {{root, 0, root->tokens()}};
  const auto middle = Continue(parts, suffix_);
  for (const Policy policy : {Policy::kUniform, Policy::kLocal}) {
    PackOptions options;
    options.policy = policy;
    options.max_bytes = 22000;
    PackTimes times;
    const PackedCard packed = Take(PackSession(*middle, options, &times));
    EXPECT_LE(packed.file_bytes(), options.max_bytes);
    EXPECT_EQ(Take(Card::FromBytes(packed.Bytes())).anchors().size(), kMostAnchors);
  }
}

// Anchors of earlier receivers count from the context's first token, those of parents for nothing.
TEST_F(AnchorsTest, OfOthersMoveBitsOfTheTokensThatFollowCards) {
  const SharedCard root = Pack(*sender_, Policy::kUniform, 4);
  const std::vector<CardPart> parts = {{root, 0, root->tokens()}};
  const auto middle = Continue(parts, SomeTokens(80, 3));
  PackOptions options;
  options.policy = Policy::kTopology;
  options.code_bits = 3;
  options.features = Take(ParseFeatures("attention,anchors"));
  PackTimes times;
  const auto levels = [&](std::vector<Anchor> anchors) {
    options.anchors = std::move(anchors);
    return Take(Card::FromBytes(Take(PackSession(*middle, options, &times)).Bytes())).plan();
  };
  const BitPlan plan = levels({{40, 0.5f}, {150 + 33, 0.5f}});
  EXPECT_GT(plan.level(33).key_bits, 2);
  EXPECT_EQ(levels({{150 + 33, 0.5f}}).level_of_token, plan.level_of_token);
  EXPECT_NE(levels({{150 + 60, 0.5f}}).level_of_token, plan.level_of_token);
  options.anchors = {{40, 0.5f}};
  const Status status = PackSession(*middle, options, &times).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("anchors"), std::string::npos) << status.message();
}

// A card of a receiver says what counts of the root, to whom packs the root again, if it is the same one.
TEST_F(AnchorsTest, OfADeltaCardCountForItsRootOnly) {
  const SharedCard root = Pack(*sender_, Policy::kUniform, 4);
  const std::vector<CardPart> parts = {{root, 0, 147}};
  const SharedCard delta = Pack(*Continue(parts, suffix_));
  const std::vector<int32_t> before = TokensOf(parts);
  const auto count = [&](const std::vector<int32_t>& tokens) {
    std::vector<Anchor> anchors;
    const Status status = AddAnchors(*delta, before, "it", tokens, &anchors);
    EXPECT_EQ(status.ok(), !anchors.empty()) << status.message();
    return anchors.size();
  };
  const auto within = [&](uint32_t end) {
    return static_cast<size_t>(std::ranges::count_if(delta->anchors(), [&](Anchor a) { return a.token < end; }));
  };
  EXPECT_EQ(count(prefix_), within(147));  // the last three are not what the delta goes on with
  std::vector<int32_t> other = prefix_;
  other[100] += 1;
  EXPECT_EQ(count(other), within(100));
  other[2] += 1;
  EXPECT_EQ(count(other), 0u);
  std::vector<int32_t> all = before;
  all.insert(all.end(), suffix_.begin(), suffix_.end());
  EXPECT_EQ(count(all), kMostAnchors);
  std::vector<Anchor> anchors;
  const Status status = AddAnchors(*delta, {}, "it", prefix_, &anchors);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "it continues another card, without which it is not known what its anchors are of: flatten both");
}

}  // namespace
}  // namespace qkvshare
