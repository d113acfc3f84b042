#include "eval/hop_kl_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "eval/chain_run.h"
#include "eval/hop_kl_report.h"
#include "eval/result_file.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class HopKlRunTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    TinyModelSpec spec;
    spec.context = 8192;
    spec.half_matrices = false;
    model_ = LoadTiny(spec);
    std::vector<GsmProblem> problems;
    for (const char* number : {"1", "2", "3"})
      problems.push_back({std::string("How many are ") + number + "?", std::string("#### ") + number, number});
    ChainProtocol protocol;
    protocol.shots = 0;
    protocol.hops = 3;
    protocol.predict = 12;
    protocol.parallel = 2;
    protocol.session = SmallOptions();
    set_ = Take(MakeChainSet(*model_, problems, problems, protocol));
    const Status status = RunChainArm(*model_, set_, Take(ParseChainArm("f16")), Path("f16.jsonl"), {});
    ASSERT_TRUE(status.ok()) << status.message();
  }

  HopKlRequest Request(const std::vector<std::string>& arms) const {
    HopKlRequest request;
    request.conversation = set_.request;
    request.said = Take(ReadConversations(Path("f16.jsonl"), 0));
    request.arms = Take(ParseHopKlArms(arms));
    return request;
  }
  std::vector<FidelityLine> Run(const std::vector<std::string>& arms) const {
    return Take(RunHopKl(*model_, Request(arms)));
  }
  static std::vector<FidelityLine> Of(const std::vector<FidelityLine>& lines, const std::string& arm,
                                      const std::string& hop) {
    std::vector<FidelityLine> found;
    std::copy_if(lines.begin(), lines.end(), std::back_inserter(found),
                 [&](const FidelityLine& line) { return line.arm == arm && line.kind == hop; });
    return found;
  }
  static double MeanKl(const std::vector<FidelityLine>& lines) {
    double sum = 0, count = 0;
    for (const FidelityLine& line : lines) {
      sum = std::accumulate(line.kl.begin(), line.kl.end(), sum);
      count += static_cast<double>(line.kl.size());
    }
    return sum / count;
  }

  std::unique_ptr<Model> model_;
  ChainSet set_;
};

TEST_F(HopKlRunTest, MeasuresEveryAnswerOfEveryHopByEveryArm) {
  const std::vector<std::string> arms = {"once@4",        "uniform@4", "topology@3",      "local@4",       "exact",
                                         "requantized@2", "uniform@2", "cache:q4_0/q4_0", "cache:f16/f16", "floor"};
  const std::vector<FidelityLine> lines = Run(arms);
  const std::vector<HopRecord> said = Take(ReadConversations(Path("f16.jsonl"), 0));
  ASSERT_EQ(said.size(), 9U);
  ASSERT_EQ(lines.size(), said.size() * arms.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const HopRecord& record = said[i / arms.size()];
    EXPECT_EQ(lines[i].prompt, record.chain);
    EXPECT_EQ(lines[i].kind, "hop " + std::to_string(record.hop + 1));
    EXPECT_EQ(lines[i].kl.size(), record.tokens.size() + (record.end_token >= 0 ? 1 : 0));
    EXPECT_EQ(lines[i].bytes == 0, record.hop == 0) << lines[i].arm;
    // Where it was answered greedily by F16, its tokens are F16's most likely ones: but for near ties.
    EXPECT_GT(lines[i].ref_answer_logprob, -6 * static_cast<double>(lines[i].answer_tokens));
  }
  // Nothing has been handed over in the first hop; an F16 cache is what the others are compared with.
  for (const char* arm : {"uniform@4", "topology@3", "requantized@2"}) EXPECT_EQ(MeanKl(Of(lines, arm, "hop 1")), 0);
  for (const char* hop : {"hop 1", "hop 2", "hop 3"}) {
    EXPECT_EQ(MeanKl(Of(lines, "cache:f16/f16", hop)), 0);
    EXPECT_LT(MeanKl(Of(lines, "exact", hop)), 1e-4);
    EXPECT_LT(MeanKl(Of(lines, "floor", hop)), 1e-4);
  }
  for (const char* hop : {"hop 2", "hop 3"}) {
    EXPECT_GT(MeanKl(Of(lines, "uniform@4", hop)), 5 * MeanKl(Of(lines, "exact", hop)));
    EXPECT_GT(MeanKl(Of(lines, "uniform@2", hop)), MeanKl(Of(lines, "uniform@4", hop)));
    EXPECT_GT(MeanKl(Of(lines, "cache:q4_0/q4_0", hop)), 0);
  }
  // The first card of a chain is the single hand-over of the same tokens; later ones are not.
  const auto values = [&](const char* arm, const char* hop) {
    std::vector<std::vector<double>> kl;
    for (const FidelityLine& line : Of(lines, arm, hop)) kl.push_back(line.kl);
    return kl;
  };
  EXPECT_EQ(values("uniform@4", "hop 2"), values("once@4", "hop 2"));
  EXPECT_NE(values("uniform@4", "hop 3"), values("once@4", "hop 3"));
}

TEST_F(HopKlRunTest, ArmsDoNotDependOnEachOther) {
  const std::vector<FidelityLine> all = Run({"floor", "requantized@4", "topology@4", "once@4", "uniform@4"});
  for (const char* arm : {"uniform@4", "topology@4", "requantized@4", "once@4", "floor"}) {
    SCOPED_TRACE(arm);
    for (const FidelityLine& line : Run({arm})) {
      const std::vector<FidelityLine> others = Of(all, arm, line.kind);
      EXPECT_TRUE(std::any_of(others.begin(), others.end(),
                              [&](const FidelityLine& other) {
                                return other.prompt == line.prompt && other.kl == line.kl && other.bytes == line.bytes;
                              }))
          << line.prompt << ", " << line.kind;
    }
  }
}

TEST_F(HopKlRunTest, GoesOnWhereItWasStopped) {
  HopKlRequest request = Request({"uniform@4", "once@4"});
  request.results = Path("hops.jsonl");
  std::atomic<bool> cancel{false};
  request.cancel = &cancel;
  request.on_step = [&](const HopKlProgress& at) { cancel = at.chain == 1; };
  EXPECT_EQ(RunHopKl(*model_, request).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(Take(ReadResults(request.results, kHopKlKind)).lines.size(), 3U * 2U);
  cancel = false;
  std::vector<size_t> seen;
  request.on_step = [&](const HopKlProgress& at) { seen.push_back(at.chain); };
  const std::vector<FidelityLine> lines = Take(RunHopKl(*model_, request));
  EXPECT_EQ(seen.front(), 1U);
  EXPECT_EQ(lines.size(), 9U * 2U);
  const std::vector<FidelityLine> once = Run({"uniform@4", "once@4"});
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i].kl, once[i].kl);
}

TEST_F(HopKlRunTest, OtherConversationsAreRefused) {
  HopKlRequest request = Request({"uniform@4"});
  request.results = Path("hops.jsonl");
  ASSERT_TRUE(RunHopKl(*model_, request).status().ok());
  // Another answer is another input.
  request.said[1].tokens.pop_back();
  const Status other = RunHopKl(*model_, request).status();
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(other.message().find("answers"), std::string::npos) << other.message();
  request.results.clear();
  request.said[1].read_tokens += 1;
  const Status tokens = RunHopKl(*model_, request).status();
  EXPECT_EQ(tokens.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(tokens.message().find("other tokens"), std::string::npos) << tokens.message();
  request.said.pop_back();
  EXPECT_EQ(RunHopKl(*model_, request).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadConversations(Path("f16.jsonl"), 4).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Take(ReadConversations(Path("f16.jsonl"), 2)).size(), 6U);
}

}  // namespace
}  // namespace qkvshare
