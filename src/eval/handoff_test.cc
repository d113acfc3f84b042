#include "eval/handoff.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "runtime/sender.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

constexpr char kDocument[] =
    "The water of the spring is cold, and it runs in the shade of the trees to the old mill. Nobody grinds corn there "
    "now. The wheel is broken, the roof has holes, and the cat of the farmer sleeps on the mill stone. In the summer "
    "the children of the town swim in the pond, and in the winter they cut holes in the ice and wait for the fish.";

class HandoffTest : public SessionTest {
 protected:
  void Start(const std::string& architecture) {
    TinyModelSpec spec;
    spec.architecture = architecture;
    session_.reset();  // before its model
    model_ = LoadTiny(spec, architecture + ".gguf");
    session_ = MakeSession(*model_);
  }

  // The sender's side: reads the document, writes doc.card and doc.state. Returns the number of tokens.
  size_t Send(double code_bits) {
    session_->Clear();
    const std::vector<int32_t> tokens = model_->Tokenize(kDocument, /*add_special=*/true);
    Prefill(session_.get(), tokens);
    PackOptions options;
    options.code_bits = code_bits;
    PackTimes times;
    EXPECT_TRUE(Take(PackSession(*session_, options, &times)).Write(Path("doc.card")).ok());
    EXPECT_TRUE(WriteFileAtomic(Path("doc.state"), {Take(session_->SaveState())}).ok());
    session_->Clear();
    return tokens.size();
  }

  HandoffRequest Request() const {
    HandoffRequest request;
    request.card_path = Path("doc.card");
    request.state_path = Path("doc.state");
    request.questions = {"Who sleeps on the mill stone?", "Is the water cold?"};
    request.predict = 20;
    return request;
  }
  Result<HandoffReport> Measure(const HandoffRequest& request) { return MeasureHandoff(session_.get(), request); }

  // Mean KL of the tokens of a question after the document against the same tokens after nothing.
  double KlWithoutContext() {
    session_->Clear();
    Prefill(session_.get(), model_->Tokenize(kDocument, /*add_special=*/true));
    const std::vector<int32_t> question = model_->Tokenize("Who sleeps on the mill stone?", /*add_special=*/false);
    const LogitRows with = Take(ScoreTokens(session_.get(), question, 0));
    session_->Clear();
    FidelityMeter meter;
    meter.Add(with, Take(ScoreTokens(session_.get(), question, 0)));
    return meter.Result().mean_kl;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
};

TEST_F(HandoffTest, WhereCardsCanBeAttachedToThatIsOneMoreWay) {
  Start("llama");
  Send(8);
  SessionOptions options = SmallOptions();
  options.fused = true;
  session_ = MakeSession(*model_, options);
  const HandoffReport report = Take(Measure(Request()));
  for (const HandoffQuestion& question : report.questions) {
    ASSERT_EQ(question.arms.size(), 4u);
    EXPECT_EQ(question.arms[3].name, "card fused");
    EXPECT_EQ(question.arms[3].cached_tokens, question.arms[2].cached_tokens);
    EXPECT_EQ(question.arms[3].stages[1].name, "attach");
  }
  EXPECT_EQ(report.fused.tokens, report.card.tokens);
  EXPECT_GT(report.fused.mean_kl, 0);
  EXPECT_LT(report.fused.mean_kl, 0.01);
}

TEST_F(HandoffTest, ExactCardEqualsTheF16State) {
  for (const char* architecture : {"llama", "qwen2"}) {
    SCOPED_TRACE(architecture);
    Start(architecture);
    const size_t sender_tokens = Send(16);
    HandoffRequest request = Request();
    std::vector<std::string> steps;
    request.on_step = [&](const std::string& step) { steps.push_back(step); };
    const Result<HandoffReport> report = Measure(request);
    ASSERT_TRUE(report) << report.status().message();
    ASSERT_EQ(report->questions.size(), 2u);
    // Each question: one prefill, repeats of the two others, fidelity.
    const auto named = [&](const std::string& name) { return std::count(steps.begin(), steps.end(), name); };
    EXPECT_EQ(named("re-prefill"), 2);
    EXPECT_EQ(named("F16 state"), static_cast<ptrdiff_t>(2 * request.repeats));
    EXPECT_EQ(named("card restored"), static_cast<ptrdiff_t>(2 * request.repeats));
    EXPECT_EQ(named("fidelity"), 2);
    size_t compared = 0;
    for (size_t i = 0; i < 2; ++i) {
      const HandoffQuestion& question = report->questions[i];
      EXPECT_EQ(question.text, request.questions[i]);
      ASSERT_EQ(question.arms.size(), 3u);
      const HandoffArm &prefill = question.arms[0], &state = question.arms[1], &card = question.arms[2];
      EXPECT_EQ(prefill.name, "re-prefill");
      EXPECT_EQ(state.name, "F16 state");
      EXPECT_EQ(card.name, "card restored");
      EXPECT_EQ(prefill.cached_tokens, 0u);
      EXPECT_EQ(card.cached_tokens, state.cached_tokens);
      EXPECT_GE(card.cached_tokens + 2, sender_tokens);  // the seam may change a token
      EXPECT_LE(card.cached_tokens, sender_tokens);
      for (const HandoffArm& arm : question.arms) {
        EXPECT_EQ(arm.cached_tokens + arm.evaluated_tokens, prefill.evaluated_tokens) << arm.name;
        int64_t sum = 0;
        for (const Stage& stage : arm.stages) {
          EXPECT_GE(stage.us, 0) << stage.name;
          sum += stage.us;
        }
        EXPECT_EQ(arm.ttft_us(), sum);
        EXPECT_GT(arm.ttft_us(), 0);
      }
      EXPECT_FALSE(card.answer.empty());
      EXPECT_EQ(card.answer, state.answer);
      compared += card.evaluated_tokens;
    }
    // Exact rows, the same seam, the same pieces: not one bit may differ.
    EXPECT_EQ(report->card.max_kl, 0.0);
    EXPECT_EQ(report->card.mean_kl, 0.0);
    EXPECT_EQ(report->card.top1_agreement, 1.0);
    EXPECT_GE(report->card.tokens, compared);  // and the answers
    EXPECT_LE(report->card.tokens, compared + 2 * request.predict);
    EXPECT_EQ(report->noise_floor.tokens, report->card.tokens);
    // nats; F16 attention against itself in other pieces. A wrong position or row gives several nats.
    EXPECT_LT(report->noise_floor.mean_kl, 0.02);
  }
}

TEST_F(HandoffTest, NarrowCardIsCloseButNotEqual) {
  for (const char* architecture : {"llama", "qwen2"}) {
    SCOPED_TRACE(architecture);
    Start(architecture);
    Send(4);
    const Result<HandoffReport> report = Measure(Request());
    ASSERT_TRUE(report) << report.status().message();
    EXPECT_GT(report->card.mean_kl, 0.0);
    EXPECT_GT(report->card.max_kl, 0.0);
    EXPECT_GE(report->card.max_kl, report->card.p99_kl);
    EXPECT_GE(report->card.p99_kl, report->card.median_kl);
    // A random model has no robust predictions, so the limit is a share of what forgetting the context does. Measured:
    // 0.025 and 0.045.
    EXPECT_LT(report->card.mean_kl, 0.1 * KlWithoutContext());
    Send(8);
    const Result<HandoffReport> finer = Measure(Request());
    ASSERT_TRUE(finer) << finer.status().message();
    // 8 bits have a sixteenth of the error of 4, and KL grows with its square: measured ratio 0.005.
    EXPECT_LT(finer->card.mean_kl, 0.1 * report->card.mean_kl);
  }
}

TEST_F(HandoffTest, KnownAnswersCountForTheFidelityOnly) {
  Start("llama");
  Send(8);
  HandoffRequest request = Request();
  request.questions.resize(1);
  request.repeats = 1;
  const HandoffReport without = Take(Measure(request));
  const std::string answer = "The cat of the farmer.";
  request.known_answers = {{"Who sleeps?", answer}};
  const HandoffReport with = Take(Measure(request));
  ASSERT_EQ(with.questions.size(), 1u);
  EXPECT_EQ(with.questions[0].arms[2].answer, without.questions[0].arms[2].answer);
  // The answer, and the turn before it.
  EXPECT_GT(with.card.tokens, without.card.tokens + model_->Tokenize(answer, /*add_special=*/false).size());
  EXPECT_EQ(with.noise_floor.tokens, with.card.tokens);
}

TEST_F(HandoffTest, RefusesWhatItCannotUse) {
  Start("llama");
  Send(16);
  HandoffRequest request = Request();
  request.card_path = Path("none.card");
  EXPECT_EQ(Measure(request).status().code(), StatusCode::kNotFound);
  request = Request();
  request.state_path = Path("none.state");
  EXPECT_EQ(Measure(request).status().code(), StatusCode::kNotFound);
  // A state that is cut off, and a file that is none.
  const Result<std::string> state = ReadText(Path("doc.state"), 64 << 20);
  ASSERT_TRUE(state);
  const auto* bytes = reinterpret_cast<const uint8_t*>(state->data());
  request.state_path = Path("half.state");
  ASSERT_TRUE(WriteFileAtomic(request.state_path, {{bytes, state->size() / 2}}).ok());
  EXPECT_FALSE(Measure(request));
  request.state_path = Path("doc.card");
  EXPECT_FALSE(Measure(request));
  Start("qwen2");
  EXPECT_EQ(Measure(Request()).status().code(), StatusCode::kMismatch);
}

}  // namespace
}  // namespace qkvshare
