// Hand-overs on real models: what 4 bits cost, beside the runtime's own noise and beside llama.cpp's own 4-bit cache.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/file.h"
#include "eval/fidelity.h"
#include "runtime/inject.h"
#include "runtime/model_store.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

constexpr size_t kPrefix = 768;
constexpr size_t kSuffix = 128;

struct Losses {
  Fidelity floor, card4, card8, q4_0;
  Fidelity fused16;    // an exact card attended to, against llama.cpp's own attention
  Fidelity fused4;     // a card of 4 bits attended to, against the same restored
  bool exact = false;  // whether a card of 16 bits goes on as the prefill itself, to the bit
};

class ModelMeasurement {
 public:
  explicit ModelMeasurement(const std::string& path) : model_(Take(Model::Load(path, {}))) {
    const std::string text = Take(ReadText(std::string(QKV_SOURCE_DIR) + "/tools/demo/document.md", 1 << 20));
    const std::vector<int32_t> tokens = model_->Tokenize(text, true);
    prefix_.assign(tokens.begin(), tokens.begin() + kPrefix);
    suffix_.assign(tokens.begin() + kPrefix, tokens.begin() + kPrefix + kSuffix);
  }

  Losses Measure() {
    const auto session = MakeSession(CacheType::kF16);
    Prefill(session.get());
    const std::vector<uint8_t> state = Take(session->SaveState());
    PackOptions options;
    PackTimes times;
    const Card card4 = Take(Card::FromBytes(Take(PackSession(*session, options, &times)).Bytes()));
    options.code_bits = 8;
    const Card card8 = Take(Card::FromBytes(Take(PackSession(*session, options, &times)).Bytes()));

    options.code_bits = 16;
    const Card card16 = Take(Card::FromBytes(Take(PackSession(*session, options, &times)).Bytes()));

    Losses losses;
    const LogitRows prefilled = Take(ScoreTokens(session.get(), suffix_, 0));
    losses.exact = Score(session.get(), card16).values == prefilled.values;
    const LogitRows reference = Score(session.get(), state, 0);
    losses.floor = Compare(reference, Score(session.get(), state, 16));
    losses.card4 = Compare(reference, Score(session.get(), card4));
    losses.card8 = Compare(reference, Score(session.get(), card8));
    const LogitRows restored4 = Score(session.get(), card4);
    const auto fused = MakeSession(CacheType::kF16, /*fused=*/true);
    losses.fused16 = Compare(reference, ScoreFused(fused.get(), card16));
    losses.fused4 = Compare(restored4, ScoreFused(fused.get(), card4));
    const auto q4_0 = MakeSession(CacheType::kQ4_0);
    Prefill(q4_0.get());
    losses.q4_0 = Compare(reference, Take(ScoreTokens(q4_0.get(), suffix_, 0)));
    return losses;
  }

 private:
  std::unique_ptr<Session> MakeSession(CacheType type, bool fused = false) const {
    SessionOptions options;
    options.fused = fused;
    options.context = kPrefix + kSuffix;
    options.cache_type_k = options.cache_type_v = type;
    return Take(Session::Create(*model_, options));
  }
  void Prefill(Session* session) const {
    const Status status = session->Prefill(prefix_, {});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  LogitRows Score(Session* session, const std::vector<uint8_t>& state, size_t piece) const {
    EXPECT_TRUE(session->RestoreState(state, prefix_).ok());
    return Take(ScoreTokens(session, suffix_, piece));
  }
  LogitRows Score(Session* session, const Card& card) const {
    RestoreTimes times;
    EXPECT_TRUE(RestoreCard(card, card.tokens(), session, &times).ok());
    return Take(ScoreTokens(session, suffix_, 0));
  }
  LogitRows ScoreFused(Session* session, const Card& card) const {
    const CardPart part{{std::shared_ptr<const Card>(), &card}, 0, card.tokens()};
    const Injection injection = Take(InjectCards({&part, 1}, InjectMode::kFused, session));
    return Take(ScoreTokens(session, suffix_, 0));
  }
  static Fidelity Compare(const LogitRows& reference, const LogitRows& other) {
    FidelityMeter meter;
    meter.Add(reference, other);
    return meter.Result();
  }

  std::unique_ptr<Model> model_;
  std::vector<int32_t> prefix_, suffix_;
};

void Print(const char* name, const Losses& losses) {
  for (const auto& [arm, f] : {std::pair{"noise floor", losses.floor}, std::pair{"card, 4 bits", losses.card4},
                               std::pair{"card, 8 bits", losses.card8}, std::pair{"fused, exact", losses.fused16},
                               std::pair{"fused4/restored", losses.fused4}, std::pair{"llama.cpp Q4_0", losses.q4_0}}) {
    std::printf("%s %-15s mean KL %.5f = %.1f times the floor, worst token %.5f, same top token %.1f%%\n", name, arm,
                f.mean_kl, f.mean_kl / losses.floor.mean_kl, f.max_kl, 100 * f.top1_agreement);
  }
}

// The floor is llama.cpp's own noise. Bounds are about twice what was measured on this prompt (4 bits: 1.8 times the
// floor on SmolLM2, 3.9 times on the 0.5B; 0.12 and 0.008 of Q4_0), since gaps under 2x on one prompt are noise.
// What attention over cards may cost: an exact card 1.5 times the floor, and at 4 bits (8-bit queries, 15-bit weights)
// less than twice the floor beyond restoring the card.
void ExpectFusedIsClose(const Losses& losses) {
  EXPECT_LT(losses.fused16.mean_kl, 1.5 * losses.floor.mean_kl);
  EXPECT_LT(losses.fused4.mean_kl, 2 * losses.floor.mean_kl);
}

TEST(RealModelTest, SmolLM2) {
  const Result<std::string> path = ResolveModel("smollm2-135m");
  if (!path) GTEST_SKIP() << path.status().message();
  const Losses losses = ModelMeasurement(*path).Measure();
  Print("SmolLM2", losses);
  EXPECT_TRUE(losses.exact);
  ExpectFusedIsClose(losses);
  EXPECT_GT(losses.floor.mean_kl, 0);
  EXPECT_LT(losses.card4.mean_kl, 4 * losses.floor.mean_kl);
  EXPECT_LT(losses.card8.mean_kl, 2 * losses.floor.mean_kl);
  EXPECT_LT(losses.card4.mean_kl, 0.25 * losses.q4_0.mean_kl);
}

// Its key bias outliers break naive low-bit keys: llama.cpp's Q4_0 cache gives a mean KL of about 0.9.
TEST(RealModelTest, QwenCoderHalfBillion) {
  const Result<std::string> path = ResolveModel("qwen2.5-coder-0.5b");
  if (!path) GTEST_SKIP() << path.status().message();
  const Losses losses = ModelMeasurement(*path).Measure();
  Print("Qwen2.5-Coder-0.5B", losses);
  EXPECT_TRUE(losses.exact);
  ExpectFusedIsClose(losses);
  EXPECT_GT(losses.floor.mean_kl, 0);
  EXPECT_LT(losses.card4.mean_kl, 8 * losses.floor.mean_kl);
  EXPECT_LT(losses.card8.mean_kl, 2 * losses.floor.mean_kl);
  EXPECT_LT(losses.card4.mean_kl, 0.02 * losses.q4_0.mean_kl);
}

// 15 of its 18 layers have a window of 512 tokens: the prompt is longer. Measured: 1.4 times the floor, 0.11 of Q4_0.
TEST(RealModelTest, Gemma3) {
  const Result<std::string> path = ResolveModel("gemma3-270m");
  if (!path) GTEST_SKIP() << path.status().message();
  const Losses losses = ModelMeasurement(*path).Measure();
  Print("Gemma-3-270M", losses);
  EXPECT_TRUE(losses.exact);
  ExpectFusedIsClose(losses);
  EXPECT_GT(losses.floor.mean_kl, 0);
  EXPECT_LT(losses.card4.mean_kl, 3 * losses.floor.mean_kl);
  EXPECT_LT(losses.card8.mean_kl, 2 * losses.floor.mean_kl);
  EXPECT_LT(losses.card4.mean_kl, 0.25 * losses.q4_0.mean_kl);
}

}  // namespace
}  // namespace qkvshare
