#include "eval/fidelity_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/file.h"
#include "eval/fidelity.h"
#include "eval/result_file.h"
#include "runtime/calibrate.h"
#include "runtime/inject.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

double Mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

class FidelityRunTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    TinyModelSpec spec;
    spec.half_matrices = false;
    model_ = LoadTiny(spec);
  }

  // Two prompts: of two continuations (with an instruction; for a part) and of one.
  static std::vector<EvalPrompt> Prompts() {
    EvalPrompt a;
    a.id = "a";
    a.context = SomeTokens(150);
    a.segments = {{"rules", "", "", 0, 90}, {"facts", "", "", 90, 60}};
    a.continuations = {{"0", "question", SomeTokens(10, 40), SomeTokens(8, 90), SomeTokens(9, 3), {}},
                       {"1", "part", SomeTokens(12, 60), SomeTokens(7, 30), SomeTokens(5, 8), {"facts"}}};
    EvalPrompt b;
    b.id = "b";
    b.context = SomeTokens(120, 77);
    b.continuations = {{"0", "continue", {}, SomeTokens(20, 11), SomeTokens(6, 5), {}}};
    return {a, b};
  }
  static FidelityRequest Request(const std::vector<std::string>& arms) {
    FidelityRequest request;
    request.prompts = Prompts();
    request.arms = Take(ParseFidelityArms(arms));
    request.session = SmallOptions();
    request.predict = 6;
    return request;
  }
  std::vector<FidelityLine> Run(const FidelityRequest& request) const { return Take(RunFidelity(*model_, request)); }
  // KL by arm, all lines one after the other.
  static std::map<std::string, std::vector<double>> KlByArm(const std::vector<FidelityLine>& lines) {
    std::map<std::string, std::vector<double>> kl;
    for (const FidelityLine& line : lines) {
      std::vector<double>& all = kl[line.arm];
      all.insert(all.end(), line.kl.begin(), line.kl.end());
    }
    return kl;
  }
  void ExpectRefused(const FidelityRequest& request, StatusCode code, const std::string& part) const {
    const Status status = RunFidelity(*model_, request).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }

  std::unique_ptr<Model> model_;
};

TEST_F(FidelityRunTest, OrdersWaysByWhatTheyLose) {
  const std::vector<FidelityLine> lines =
      Run(Request({"uniform@8", "uniform@4", "uniform@2", "exact", "exact,inject=restore", "roundtrip:f16",
                   "roundtrip:q8_0", "roundtrip:q4_0", "cache:f16", "cache:q8_0", "cache:q4_0", "floor"}));
  ASSERT_EQ(lines.size(), 3u * 12);
  const std::map<std::string, std::vector<double>> kl = KlByArm(lines);
  const auto mean = [&](const char* arm) { return Mean(kl.at(arm)); };
  for (const auto& [arm, values] : kl) EXPECT_EQ(values.size(), 8u + 9 + 7 + 5 + 20 + 6 - 1) << arm;
  EXPECT_EQ(mean("exact,inject=restore"), 0);  // the same rows in the same cells
  EXPECT_EQ(mean("roundtrip:f16/f16"), 0);
  EXPECT_EQ(mean("cache:f16/f16"), 0);
  EXPECT_LT(mean("exact"), 1e-4);  // attention over a card rounds in another way
  EXPECT_LT(mean("floor"), 1e-4);
  EXPECT_LT(mean("exact"), mean("uniform@8"));
  EXPECT_LT(mean("uniform@8"), 0.1 * mean("uniform@4"));
  EXPECT_LT(mean("uniform@4"), 0.5 * mean("uniform@2"));
  EXPECT_LT(mean("roundtrip:q8_0/q8_0"), 0.1 * mean("roundtrip:q4_0/q4_0"));
  EXPECT_LT(mean("cache:q8_0/q8_0"), 0.1 * mean("cache:q4_0/q4_0"));
  EXPECT_GT(mean("roundtrip:q8_0/q8_0"), mean("exact"));
}

// What each number is of, worked out once more by hand.
TEST_F(FidelityRunTest, ScoresWhatComesAfterTheInstruction) {
  const FidelityRequest request = Request({"uniform@3", "floor"});
  const std::vector<FidelityLine> lines = Run(request);
  ASSERT_EQ(lines.size(), 6u);
  for (const auto& [index, prompt, continuation] :
       {std::tuple{size_t{0}, 0, 0}, std::tuple{size_t{2}, 0, 1}, std::tuple{size_t{4}, 1, 0}}) {
    const FidelityLine& line = lines[index];
    const EvalPrompt& of = request.prompts[static_cast<size_t>(prompt)];
    const Continuation& c = of.continuations[static_cast<size_t>(continuation)];
    SCOPED_TRACE(of.id + "/" + c.id);
    EXPECT_EQ(line.prompt, of.id);
    EXPECT_EQ(line.continuation, c.id);
    EXPECT_EQ(line.kind, c.kind);
    EXPECT_EQ(line.arm, "uniform@3");
    EXPECT_EQ(line.answer_tokens, c.answer.size());
    SessionOptions options = FusedOptions();
    const std::unique_ptr<Session> session = MakeSession(*model_, options);
    PrefillOptions prefill;
    prefill.window = kWindowTokens;
    prefill.window_stride = kWindowStride;
    ASSERT_TRUE(session->Prefill(of.context, prefill).ok());
    PackOptions pack;
    pack.code_bits = 3;
    pack.sender = "sender";
    pack.segments = of.segments;
    PackTimes times;
    const auto card =
        std::make_shared<const Card>(Take(Card::FromBytes(Take(PackSession(*session, pack, &times)).Bytes())));
    EXPECT_EQ(line.bytes, card->file_bytes());
    EXPECT_NEAR(line.code_bits, card->average_code_bits(), 1e-4);  // six digits are kept
    EXPECT_NEAR(line.total_bits, card->average_total_bits(), 1e-4);
    std::vector<int32_t> tokens = c.instruction;
    tokens.insert(tokens.end(), c.turn.begin(), c.turn.end());
    tokens.insert(tokens.end(), c.answer.begin(), c.answer.end());
    const LogitRows reference = Take(ScoreTokens(session.get(), tokens, 0));
    const CardPart part{card, 0, card->tokens()};
    ASSERT_TRUE(InjectCards({&part, 1}, InjectMode::kFused, session.get()).status().ok());
    const LogitRows rows = Take(ScoreTokens(session.get(), tokens, 0));
    const size_t skipped = c.instruction.empty() ? 1 : c.instruction.size();  // not predicted, or not scored
    ASSERT_EQ(line.kl.size(), tokens.size() - skipped);
    std::vector<size_t> other;
    double answer = 0, reference_answer = 0;
    for (size_t i = 0; i < line.kl.size(); ++i) {
      const size_t row = skipped + i - 1;
      const Prediction expected =
          ReferenceRows(reference, row, 1).Compare(rows, std::span(tokens).subspan(row + 1, 1), 1).front();
      EXPECT_NEAR(line.kl[i], expected.kl, 5e-4 * expected.kl + 1e-12);  // four digits are kept
      if (!expected.same) other.push_back(i);
      if (i + line.answer_tokens < line.kl.size()) continue;
      answer += expected.log_probability;
      reference_answer += expected.reference_log_probability;
    }
    EXPECT_EQ(line.other, other);
    EXPECT_NEAR(line.answer_logprob, answer, 1e-3);
    EXPECT_NEAR(line.ref_answer_logprob, reference_answer, 1e-3);
  }
}

TEST_F(FidelityRunTest, GoesOnFromItsResults) {
  FidelityRequest request = Request({"uniform@4", "topology@3", "floor"});
  request.prompts[1].continuations.push_back({"1", "question", SomeTokens(4), SomeTokens(5, 9), {}, {}});
  request.results = Path("r.jsonl");
  request.made_by = {{"set", "test"}, {"seed", 5}};
  const std::vector<FidelityLine> lines = Run(request);
  const std::string whole = Take(ReadText(request.results, 1 << 20));
  const Results results = Take(ReadResults(request.results, kFidelityKind));
  EXPECT_EQ(results.lines.size(), lines.size());
  EXPECT_EQ(results.header["seed"], 5);
  EXPECT_EQ(results.header["arms"].size(), 3u);
  EXPECT_EQ(results.lines[0]["tokens"], request.prompts[0].context.size());
  EXPECT_EQ(results.lines[1]["features"], (std::vector<std::string>{"attention", "prior", "anchors", "probe"}));
  // Stopped within the second prompt.
  const size_t second = whole.find("{\"prompt\":\"b\"");
  ASSERT_NE(second, std::string::npos);
  std::ofstream(request.results) << whole.substr(0, second + 300);
  size_t steps = 0;
  request.on_step = [&](const FidelityProgress& at) {
    EXPECT_EQ(at.prompt, 1u);  // the first is not measured again
    EXPECT_EQ(at.prompts, 2u);
    EXPECT_LE(at.done, at.total);
    ++steps;
  };
  const std::vector<FidelityLine> again = Run(request);
  EXPECT_GT(steps, 10u);
  EXPECT_EQ(Take(ReadText(request.results, 1 << 20)), whole);
  ASSERT_EQ(again.size(), lines.size());
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(FidelityLineJson(again[i]), FidelityLineJson(lines[i]));
  // All is there: nothing is measured.
  request.on_step = [](const FidelityProgress&) { FAIL(); };
  EXPECT_EQ(Run(request).size(), lines.size());
  request.on_step = nullptr;
  request.arms.pop_back();
  ExpectRefused(request, StatusCode::kInvalidArgument, "\"arms\" differs");
  request = Request({"uniform@4", "floor"});  // of one continuation less
  request.results = Path("r.jsonl");
  ExpectRefused(request, StatusCode::kInvalidArgument, "\"input\" differs");
}

TEST_F(FidelityRunTest, StopsBetweenPrompts) {
  FidelityRequest request = Request({"uniform@4"});
  std::atomic<bool> cancel{false};
  request.session.cancel = &cancel;
  request.results = Path("r.jsonl");
  request.on_step = [&](const FidelityProgress& at) {
    if (at.prompt == 1) cancel = true;
  };
  EXPECT_EQ(RunFidelity(*model_, request).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(Take(ReadResults(request.results, kFidelityKind)).lines.size(), 2u);
}

// The same card for all, or one for each receiver, by what is known of it.
TEST_F(FidelityRunTest, TopologyGoesByTheReceiver) {
  FidelityRequest request = Request({"local@3", "topology@3", "topology@3,features=attention+probe",
                                     "topology@3,features=attention+anchors", "topology@3,features=attention+prior",
                                     "random@3,control_of=topology", "oracle@3", "oracle@3,sees=turn"});
  request.prompts.pop_back();  // of its receiver nothing is known
  request.results = Path("r.jsonl");
  const std::vector<FidelityLine> lines = Run(request);
  ASSERT_EQ(lines.size(), 16u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].code_bits, lines[0].code_bits) << lines[i].arm;  // equal bits
    EXPECT_GT(Mean(lines[i].kl), 0);
    for (size_t other = i / 8 * 8; other < i; ++other) {
      // Without roles there is one prior for all, and so nothing that local does not know.
      const bool alike = i == 4 && other == 0;
      EXPECT_EQ(lines[i].kl == lines[other].kl, alike) << lines[i].arm << ", " << lines[other].arm;
    }
  }
  const Results results = Take(ReadResults(request.results, kFidelityKind));
  const auto features = [&](size_t line) { return results.lines[line]["features"].get<std::vector<std::string>>(); };
  EXPECT_EQ(features(0), (std::vector<std::string>{"attention"}));
  EXPECT_EQ(features(1), (std::vector<std::string>{"attention", "prior", "anchors", "probe"}));
  EXPECT_EQ(features(6), (std::vector<std::string>{"attention", "probe"}));
}

// The same text under other names, so that only what is shuffled can differ.
TEST_F(FidelityRunTest, RandomShufflesAnewForEachOfThem) {
  FidelityRequest request = Request({"random@3", "random@3,control_of=topology", "local@3"});
  request.prompts.pop_back();
  EvalPrompt& a = request.prompts[0];
  a.continuations[1] = a.continuations[0];
  a.continuations[1].id = "1";
  request.prompts.push_back(a);
  request.prompts[1].id = "c";
  const std::vector<FidelityLine> lines = Run(request);
  ASSERT_EQ(lines.size(), 2u * 2 * 3);
  const auto kl = [&](size_t prompt, size_t continuation, size_t arm) {
    return lines[(prompt * 2 + continuation) * 3 + arm].kl;
  };
  EXPECT_NE(kl(0, 0, 0), kl(1, 0, 0));
  EXPECT_EQ(kl(0, 0, 0), kl(0, 1, 0));  // one card for all continuations
  EXPECT_NE(kl(0, 0, 1), kl(1, 0, 1));
  EXPECT_NE(kl(0, 0, 1), kl(0, 1, 1));
  EXPECT_EQ(kl(0, 0, 2), kl(1, 0, 2));
  const std::vector<FidelityLine> again = Run(request);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(again[i].kl, lines[i].kl);
}

// Reference and cards are the same whatever else is measured.
TEST_F(FidelityRunTest, ArmsDoNotDependOnEachOther) {
  FidelityRequest request = Request({"uniform@4", "local@3,features=full", "floor"});
  request.prompts.pop_back();
  const std::vector<FidelityLine> alone = Run(request);
  request.arms = Take(ParseFidelityArms(std::vector<std::string>{"topology@3", "oracle@4", "cache:q8_0", "uniform@4",
                                                                 "roundtrip:q4_0", "local@3,features=full", "floor"}));
  const std::vector<FidelityLine> together = Run(request);
  for (const FidelityLine& line : alone) {
    const auto same = std::find_if(together.begin(), together.end(), [&](const FidelityLine& other) {
      return other.arm == line.arm && other.continuation == line.continuation;
    });
    ASSERT_NE(same, together.end());
    EXPECT_EQ(FidelityLineJson(*same), FidelityLineJson(line));
  }
}

TEST_F(FidelityRunTest, AnswersThatAreNotGivenAreThoseOfFp16) {
  FidelityRequest request = Request({"roundtrip:f16", "uniform@2"});
  for (EvalPrompt& prompt : request.prompts) {
    for (Continuation& continuation : prompt.continuations) continuation.answer.clear();
  }
  for (const FidelityLine& line : Run(request)) {
    EXPECT_GE(line.answer_tokens, 1u);
    EXPECT_LE(line.answer_tokens, 7u);  // with an end token
    // The most likely tokens of FP16: no other is more likely than that.
    EXPECT_GT(line.ref_answer_logprob / static_cast<double>(line.answer_tokens),
              -std::log(static_cast<double>(model_->vocab_size())));
    if (line.arm == "roundtrip:f16/f16") {
      EXPECT_EQ(line.answer_logprob, line.ref_answer_logprob);
    }
  }
}

TEST_F(FidelityRunTest, TakesProfilesAndWidthsOfLayers) {
  const std::unique_ptr<Session> session = MakeSession(*model_);
  CalibrateOptions calibrate;
  calibrate.tokens = 256;
  calibrate.piece_tokens = 256;
  StaticProfile profile = Take(Calibrate(session.get(), calibrate));
  ASSERT_TRUE(WriteStaticProfile(Path("tiny.profile"), &profile).ok());
  FidelityRequest request =
      Request({"uniform@4", "uniform@4,profile=" + Path("tiny.profile"), "uniform@4,layers=1:k=1"});
  request.prompts.pop_back();
  const std::vector<FidelityLine> lines = Run(request);
  EXPECT_EQ(lines[1].arm, "uniform@4,profile=tiny.profile");
  EXPECT_NE(lines[0].kl, lines[1].kl);
  EXPECT_EQ(lines[0].code_bits, lines[1].code_bits);
  EXPECT_EQ(lines[2].arm, "uniform@4,layers=1:k=1");
  EXPECT_NE(lines[2].kl, lines[0].kl);
  EXPECT_EQ(lines[2].code_bits, lines[0].code_bits);  // other layers pay for it
  request.arms = Take(ParseFidelityArms(std::vector<std::string>{"uniform@4,layers=7:k=1"}));
  ExpectRefused(request, StatusCode::kInvalidArgument, "arm uniform@4,layers=7:k=1: ");
}

TEST_F(FidelityRunTest, RefusesWhatCannotBeRun) {
  FidelityRequest request = Request({"uniform@4"});
  request.arms.clear();
  ExpectRefused(request, StatusCode::kInvalidArgument, "no arms");
  request = Request({"topology@4"});
  ExpectRefused(request, StatusCode::kInvalidArgument, "prompt b, continuation 0: nothing is known");
  request = Request({"uniform@4"});
  request.prompts[0].context = SomeTokens(3000);
  request.prompts[0].segments.clear();
  request.prompts[0].continuations.pop_back();
  ExpectRefused(request, StatusCode::kOutOfRange, "use a smaller --context");
  request = Request({"local@4"});
  request.prompts[1].context = SomeTokens(5);
  ExpectRefused(request, StatusCode::kInvalidArgument, "arm local@4: of 5 tokens, 4 stay exact");
  request = Request({"uniform@4"});
  request.session.flash_attention = false;
  ExpectRefused(request, StatusCode::kUnsupported, "flash attention");
}

TEST_F(FidelityRunTest, SaysWhereLogitsAreNoNumbers) {
  TinyModelSpec spec;
  spec.nan_logits = true;
  const std::unique_ptr<Model> model = LoadTiny(spec, "nan.gguf");
  const Status status = RunFidelity(*model, Request({"uniform@4,inject=restore"})).status();
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  EXPECT_NE(status.message().find("prompt a, continuation 0"), std::string::npos) << status.message();
}

// Layers with a sliding window keep all rows, so that all ways work.
TEST_F(FidelityRunTest, TakesModelsWithWindows) {
  TinyModelSpec spec;
  spec.architecture = "gemma3";
  spec.sliding_window = 32;
  spec.half_matrices = false;
  const std::unique_ptr<Model> model = LoadTiny(spec, "window.gguf");
  FidelityRequest request =
      Request({"uniform@4", "roundtrip:f16", "roundtrip:q8_0", "cache:q8_0", "topology@4", "floor"});
  request.prompts.pop_back();
  const std::map<std::string, std::vector<double>> kl = KlByArm(Take(RunFidelity(*model, request)));
  EXPECT_EQ(Mean(kl.at("roundtrip:f16/f16")), 0);
  EXPECT_GT(Mean(kl.at("roundtrip:q8_0/q8_0")), 0);
  EXPECT_LT(Mean(kl.at("roundtrip:q8_0/q8_0")), Mean(kl.at("uniform@4")));
}

}  // namespace
}  // namespace qkvshare
