#include "eval/sensitivity_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/file.h"
#include "eval/fidelity.h"
#include "eval/result_file.h"
#include "policy/key_metrics.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class SensitivityTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    TinyModelSpec spec;
    spec.half_matrices = false;
    model_ = LoadTiny(spec);
  }

  static std::vector<EvalPrompt> Prompts() {
    EvalPrompt a;
    a.id = "a";
    a.context = SomeTokens(90);
    a.segments = {{"rules", "", "", 0, 60}, {"facts", "", "", 60, 30}};
    a.continuations = {{"0", "continue", {}, SomeTokens(12, 90), SomeTokens(9, 3), {}}};
    EvalPrompt b = a;
    b.id = "b";
    b.context = SomeTokens(90, 77);
    return {a, b};
  }
  static SensitivityRequest Request() {
    SensitivityRequest request;
    request.prompts = Prompts();
    request.tokens = 5;
    request.session = SmallOptions();
    return request;
  }
  std::vector<SensitivityLine> Run(const SensitivityRequest& request) const {
    return Take(RunSensitivity(*model_, request));
  }
  // A card of the whole context, exact but for one token.
  static Card CardOf(const Session& session, size_t token, Level level) {
    const KvState state = Take(session.TakeKv());
    const KeyProfiles profiles = MeasureKeyProfiles(state.view(), kSinkTokens, 1);
    BitPlan plan;
    plan.levels = {kExactLevel, level};
    plan.level_of_token.assign(state.tokens(), 0);
    plan.level_of_token[token] = 1;
    CardContent content;
    content.token_ids = session.tokens();
    content.positions = state.positions();
    content.identity = session.identity();
    content.info.segments = {{"prompt", "", "", 0, static_cast<uint32_t>(state.tokens())}};
    const KeyMetrics metrics = Take(MeasureKeyMetrics(state.view(), profiles, session.window(), 1));
    return Take(Card::FromBytes(Take(qkvshare::PackCard(state.view(), plan, profiles, content, 1, metrics)).Bytes()));
  }

  std::unique_ptr<Model> model_;
};

TEST_F(SensitivityTest, IsWhatACardWithOneLoweredTokenLoses) {
  SensitivityRequest request = Request();
  request.prompts.pop_back();
  const std::vector<SensitivityLine> lines = Run(request);
  ASSERT_EQ(lines.size(), 5u);
  const EvalPrompt& prompt = request.prompts[0];
  std::vector<int32_t> next = prompt.continuations[0].turn;
  next.insert(next.end(), prompt.continuations[0].answer.begin(), prompt.continuations[0].answer.end());
  const auto session = MakeSession(*model_);
  PrefillOptions prefill;
  KeepForPacking(*session, &prefill);
  ASSERT_TRUE(session->Prefill(prompt.context, prefill).ok());
  const std::vector<uint8_t> state = Take(session->SaveState());
  std::vector<Card> cards;
  for (const SensitivityLine& line : lines) cards.push_back(CardOf(*session, line.token, request.level));
  const LogitRows reference = Take(ScoreTokens(session.get(), next, 0));
  for (size_t i = 0; i < lines.size(); ++i) {
    RestoreTimes times;
    session->Clear();
    ASSERT_TRUE(RestoreCard(cards[i], cards[i].tokens(), session.get(), &times).ok());
    const LogitRows rows = Take(ScoreTokens(session.get(), next, 0));
    double sum = 0;
    for (size_t t = 0; t + 1 < next.size(); ++t) sum += KlDivergence(reference.row(t), rows.row(t));
    const double kl = sum / static_cast<double>(next.size() - 1);
    EXPECT_GT(kl, 0);
    EXPECT_NEAR(lines[i].kl, kl, 1e-3 * kl + 1e-10);
  }
}

TEST_F(SensitivityTest, WidthsAndTokensCount) {
  SensitivityRequest request = Request();
  const std::vector<SensitivityLine> narrow = Run(request);
  request.level = {8, 8};
  const std::vector<SensitivityLine> wide = Run(request);
  ASSERT_EQ(narrow.size(), 10u);
  double narrow_kl = 0, wide_kl = 0;
  for (size_t i = 0; i < narrow.size(); ++i) {
    EXPECT_EQ(narrow[i].prompt, i < 5 ? "a" : "b");
    EXPECT_EQ(narrow[i].role, narrow[i].token < 60 ? "rules" : "facts");
    EXPECT_GE(narrow[i].token, kSinkTokens);
    EXPECT_LT(narrow[i].token, 90u);
    EXPECT_TRUE(i % 5 == 0 || narrow[i - 1].token < narrow[i].token);
    EXPECT_EQ(narrow[i].inputs, wide[i].inputs);
    EXPECT_LT(wide[i].level_cost, narrow[i].level_cost);
    // At 2 bits the level's cost is the input.
    EXPECT_EQ(narrow[i].level_cost, narrow[i].inputs[static_cast<size_t>(ControllerInput::kCost)]);
    narrow_kl += narrow[i].kl;
    wide_kl += wide[i].kl;
  }
  EXPECT_GT(narrow_kl, 20 * wide_kl);
}

TEST_F(SensitivityTest, DrawsTheSameTokensWhateverElseThereIs) {
  SensitivityRequest request = Request();
  const std::vector<SensitivityLine> both = Run(request);
  request.prompts.erase(request.prompts.begin());
  const std::vector<SensitivityLine> alone = Run(request);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(SensitivityLineJson(alone[i]), SensitivityLineJson(both[i + 5]));
  EXPECT_NE(Take(DrawTokens(request.prompts[0], 5, 1)), Take(DrawTokens(request.prompts[0], 5, 2)));
}

TEST_F(SensitivityTest, GoesOnFromItsResults) {
  SensitivityRequest request = Request();
  request.results = Path("labels.jsonl");
  request.made_by = {{"set", "test"}};
  const std::vector<SensitivityLine> lines = Run(request);
  const std::string whole = Take(ReadText(request.results, 1 << 20));
  const Results results = Take(ReadResults(request.results, kSensitivityKind));
  EXPECT_EQ(results.header["level"], "K2V2");
  EXPECT_NE(results.header["weights"].get<std::string>().find("F32"), std::string::npos);
  EXPECT_EQ(results.lines.size(), 10u);
  std::ofstream(request.results) << whole.substr(0, whole.find("{\"prompt\":\"b\"") + 40);
  request.on_step = [](const SensitivityProgress& at) {
    EXPECT_EQ(at.prompt, 1u);
    EXPECT_LT(at.done, at.total);
  };
  const std::vector<SensitivityLine> again = Run(request);
  EXPECT_EQ(Take(ReadText(request.results, 1 << 20)), whole);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(SensitivityLineJson(again[i]), SensitivityLineJson(lines[i]));
  request.level = {4, 2};
  const Status status = RunSensitivity(*model_, request).status();
  EXPECT_NE(status.message().find("\"level\" differs"), std::string::npos) << status.message();
}

TEST_F(SensitivityTest, StopsBetweenPrompts) {
  SensitivityRequest request = Request();
  std::atomic<bool> cancel{false};
  request.session.cancel = &cancel;
  request.results = Path("labels.jsonl");
  request.on_step = [&](const SensitivityProgress& at) { cancel = at.prompt == 1; };
  EXPECT_EQ(RunSensitivity(*model_, request).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(Take(ReadResults(request.results, kSensitivityKind)).lines.size(), 5u);
}

TEST_F(SensitivityTest, RefusesWhatCannotBeMeasured) {
  const auto refused = [&](const SensitivityRequest& request, StatusCode code, const std::string& says) {
    const Status status = RunSensitivity(*model_, request).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
  };
  SensitivityRequest request = Request();
  request.tokens = 87;
  refused(request, StatusCode::kInvalidArgument, "86 tokens after the sinks");
  request = Request();
  request.level = kExactLevel;
  refused(request, StatusCode::kInvalidArgument, "exact");
  request = Request();
  request.prompts[1].continuations[0].answer.clear();
  refused(request, StatusCode::kInvalidArgument, "prompt b: its answer is not given");
  request = Request();
  request.prompts[0].context = SomeTokens(model_->training_context());
  request.prompts[0].segments.clear();
  refused(request, StatusCode::kOutOfRange, "use a smaller --context");
}

TEST_F(SensitivityTest, SummaryIsOfEachContext) {
  std::vector<SensitivityLine> lines;
  for (const char* prompt : {"a", "b"}) {
    for (int i = 0; i < 3; ++i) {
      SensitivityLine& line = lines.emplace_back();
      line.prompt = prompt;
      line.inputs[0] = i;
      line.inputs[1] = -i;
      line.level_cost = prompt[0] == 'a' ? i : -i;
      line.kl = (prompt[0] == 'a' ? 1 : 100) + i;
      line.floor = prompt[0] == 'a' ? 1.5 : 0.5;
    }
  }
  const SensitivitySummary summary = SummarizeSensitivity(lines);
  EXPECT_EQ(summary.tokens, 6u);
  EXPECT_EQ(summary.prompts, 2u);
  EXPECT_DOUBLE_EQ(summary.mean_kl, 51.5);
  EXPECT_EQ(summary.largest_kl, 102);
  EXPECT_EQ(summary.floor, 1);
  EXPECT_DOUBLE_EQ(summary.above_floor, 5.0 / 6);
  EXPECT_DOUBLE_EQ(summary.rank_correlation[0].second, 1);
  EXPECT_DOUBLE_EQ(summary.rank_correlation[1].second, -1);
  EXPECT_DOUBLE_EQ(summary.rank_correlation.back().second, 0);
}

TEST_F(SensitivityTest, LinesAreReadAsTheyAreWritten) {
  SensitivityLine line;
  line.prompt = "p";
  line.token = 7;
  line.role = "user";
  line.inputs = {1, 2, 3, 4, 5, 6, 7e-9};
  line.level_cost = 0.5;
  line.kl = 1.25e-7;
  line.floor = 3e-8;
  const nlohmann::ordered_json json = SensitivityLineJson(line);
  EXPECT_EQ(json["next_entropy"], 6);
  EXPECT_EQ(SensitivityLineJson(Take(ParseSensitivityLine(json))), json);
  nlohmann::ordered_json missing = json;
  missing.erase("rarity");
  EXPECT_EQ(ParseSensitivityLine(missing).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace qkvshare
