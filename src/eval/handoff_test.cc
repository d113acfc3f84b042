#include "eval/handoff.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "eval/eval_test_util.h"
#include "runtime/prompt.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

using eval_test::TinyHost;

// The sender's side: reads the document, writes doc.card and doc.state. Returns the number of tokens.
size_t Send(const TinyHost& host, double code_bits) {
  Session& session = host.session();
  session.Clear();
  const std::vector<int32_t> tokens = host.model().Tokenize(eval_test::kDocument, /*add_special=*/true);
  EXPECT_TRUE(session.Prefill(tokens, {}).ok());
  PackOptions options;
  options.code_bits = code_bits;
  PackTimes times;
  const Result<PackedCard> card = PackSession(session, options, &times);
  EXPECT_TRUE(card) << card.status().message();
  EXPECT_TRUE(card->Write(host.Path("doc.card")).ok());
  const Result<std::vector<uint8_t>> state = session.SaveState();
  EXPECT_TRUE(state) << state.status().message();
  EXPECT_TRUE(WriteFileAtomic(host.Path("doc.state"), {*state}).ok());
  session.Clear();
  return tokens.size();
}

HandoffRequest RequestFor(const TinyHost& host) {
  HandoffRequest request;
  request.card_path = host.Path("doc.card");
  request.state_path = host.Path("doc.state");
  request.questions = {"Who sleeps on the mill stone?", "Is the water cold?"};
  request.predict = 20;
  return request;
}

// Mean KL of the tokens of a question after the document against the same tokens after nothing.
double KlWithoutContext(const TinyHost& host) {
  Session& session = host.session();
  session.Clear();
  EXPECT_TRUE(session.Prefill(host.model().Tokenize(eval_test::kDocument, /*add_special=*/true), {}).ok());
  const std::vector<int32_t> question = host.model().Tokenize("Who sleeps on the mill stone?", /*add_special=*/false);
  const Result<LogitRows> with = ScoreTokens(&session, question, 0);
  session.Clear();
  const Result<LogitRows> without = ScoreTokens(&session, question, 0);
  EXPECT_TRUE(with && without);
  FidelityMeter meter;
  meter.Add(*with, *without);
  return meter.Result().mean_kl;
}

class HandoffTest : public testing::TestWithParam<const char*> {};

TEST_P(HandoffTest, ExactCardEqualsTheF16State) {
  const TinyHost host(GetParam());
  const size_t sender_tokens = Send(host, 16);
  HandoffRequest request = RequestFor(host);
  std::vector<std::string> steps;
  request.on_step = [&](const std::string& step) { steps.push_back(step); };
  const Result<HandoffReport> report = MeasureHandoff(&host.session(), request);
  ASSERT_TRUE(report) << report.status().message();
  ASSERT_EQ(report->questions.size(), 2u);
  EXPECT_EQ(steps.size(), 2 * 4u);
  EXPECT_EQ(steps[1], "F16 state: Who sleeps on the mill stone?");
  size_t compared = 0;
  for (size_t i = 0; i < 2; ++i) {
    const HandoffQuestion& question = report->questions[i];
    EXPECT_EQ(question.text, request.questions[i]);
    ASSERT_EQ(question.arms.size(), 3u);
    const HandoffArm &prefill = question.arms[0], &state = question.arms[1], &card = question.arms[2];
    EXPECT_EQ(prefill.name, "re-prefill");
    EXPECT_EQ(state.name, "F16 state");
    EXPECT_EQ(card.name, "card");
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

TEST_P(HandoffTest, NarrowCardIsCloseButNotEqual) {
  const TinyHost host(GetParam());
  Send(host, 4);
  const Result<HandoffReport> report = MeasureHandoff(&host.session(), RequestFor(host));
  ASSERT_TRUE(report) << report.status().message();
  EXPECT_GT(report->card.mean_kl, 0.0);
  EXPECT_GT(report->card.max_kl, 0.0);
  EXPECT_GE(report->card.max_kl, report->card.p99_kl);
  EXPECT_GE(report->card.p99_kl, report->card.median_kl);
  // A random model has no robust predictions, so the limit is a share of what forgetting the context does. Measured:
  // 0.025 and 0.045.
  EXPECT_LT(report->card.mean_kl, 0.1 * KlWithoutContext(host));
  Send(host, 8);
  const Result<HandoffReport> finer = MeasureHandoff(&host.session(), RequestFor(host));
  ASSERT_TRUE(finer) << finer.status().message();
  // 8 bits have a sixteenth of the error of 4, and KL grows with its square: measured ratio 0.005.
  EXPECT_LT(finer->card.mean_kl, 0.1 * report->card.mean_kl);
}

INSTANTIATE_TEST_SUITE_P(Models, HandoffTest, testing::Values("llama", "qwen2"),
                         [](const auto& test) { return std::string(test.param); });

TEST(MeasureHandoff, RefusesWhatItCannotUse) {
  const TinyHost host("llama");
  Send(host, 16);
  HandoffRequest request = RequestFor(host);
  request.card_path = host.Path("none.card");
  EXPECT_EQ(MeasureHandoff(&host.session(), request).status().code(), StatusCode::kNotFound);
  request = RequestFor(host);
  request.state_path = host.Path("none.state");
  EXPECT_EQ(MeasureHandoff(&host.session(), request).status().code(), StatusCode::kNotFound);
  // A state that is cut off, and a file that is none.
  const Result<std::string> state = ReadText(host.Path("doc.state"), 64 << 20);
  ASSERT_TRUE(state);
  const auto* bytes = reinterpret_cast<const uint8_t*>(state->data());
  request.state_path = host.Path("half.state");
  ASSERT_TRUE(WriteFileAtomic(request.state_path, {{bytes, state->size() / 2}}).ok());
  EXPECT_FALSE(MeasureHandoff(&host.session(), request));
  request.state_path = host.Path("doc.card");
  EXPECT_FALSE(MeasureHandoff(&host.session(), request));
  const TinyHost other("qwen2");
  EXPECT_EQ(MeasureHandoff(&other.session(), RequestFor(host)).status().code(), StatusCode::kMismatch);
}

}  // namespace
}  // namespace qkvshare
