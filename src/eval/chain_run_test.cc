#include "eval/chain_run.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "eval/chain_summary.h"
#include "eval/hop_header.h"
#include "eval/result_file.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

HopRecord Answered(const std::string& text, const std::string& stop) {
  HopRecord record;
  record.text = text;
  record.stop = stop;
  record.read_tokens = 10;
  return record;
}

TEST(ScoreOfTest, TellsRightFromWrongUnmarkedAndTruncated) {
  const ChainScore right = ScoreOf(Answered("3 + 4 = 7\n#### 7", "stop"), 7);
  EXPECT_EQ(right.answer, 7);
  EXPECT_TRUE(right.right);
  EXPECT_FALSE(right.truncated);
  EXPECT_FALSE(ScoreOf(Answered("#### 8", "end"), 7).right);
  const ChainScore unmarked = ScoreOf(Answered("It is 7.", "end"), 7);
  EXPECT_FALSE(unmarked.answer.has_value());
  EXPECT_FALSE(unmarked.right);
  EXPECT_FALSE(unmarked.truncated);
  EXPECT_TRUE(ScoreOf(Answered("It is", "length"), 7).truncated);
  EXPECT_TRUE(ScoreOf(Answered("", "context"), 7).truncated);
}

class ChainRunTest : public SessionTest {
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
    protocol.predict = 8;
    protocol.parallel = 2;
    protocol.session = SmallOptions();
    set_ = Take(MakeChainSet(*model_, problems, problems, protocol));
  }
  Status Run(const std::string& arm, const ChainRunHooks& hooks = {}) const {
    return RunChainArm(*model_, set_, Take(ParseChainArm(arm)), FileOf(arm), hooks);
  }
  std::string FileOf(const std::string& arm) const { return Path(Take(ParseChainArm(arm)).FileName() + ".jsonl"); }

  std::unique_ptr<Model> model_;
  ChainSet set_;
};

TEST_F(ChainRunTest, EveryArmAnswersInEachHop) {
  const std::vector<std::string> arms = {
      "f16",     "text",          "uniform@8", "topology@3", "random@3,control_of=topology",
      "local@5", "requantized@4", "cache:q8_0"};
  std::vector<std::string> files;
  for (const std::string& arm : arms) {
    SCOPED_TRACE(arm);
    const Status status = Run(arm);
    ASSERT_TRUE(status.ok()) << status.message();
    files.push_back(FileOf(arm));
    const Results results = Take(ReadResults(files.back(), kHopKind));
    EXPECT_EQ(results.header.at("arm"), Take(ParseChainArm(arm)).name);
    EXPECT_EQ(results.header.at("task"), "gsm8k");
    // 2 layers with 2 heads of 64 keys and 64 values; blocks of 32 with a scale of 16 bits.
    const bool f16 = arm != "cache:q8_0";
    EXPECT_EQ(results.header.at("cache_token_bytes"), f16 ? 2 * 2 * 128 * 2 : 2 * 2 * 4 * 34);
    EXPECT_EQ(results.header.at("cache_code_bits"), f16 ? 16 : 8);
    EXPECT_EQ(results.header.at("cache_total_bits"), f16 ? 16 : 8.5);
    ASSERT_EQ(results.lines.size(), 3U * 3U);
    for (size_t i = 0; i < results.lines.size(); ++i) {
      const nlohmann::ordered_json& line = results.lines[i];
      EXPECT_EQ(line.at("chain"), set_.request.chains[i / 3].id);
      EXPECT_EQ(line.at("hop"), i % 3);
      const ChainTask& task = set_.tasks.at(line.at("chain")).at(i % 3);
      EXPECT_EQ(line.at("problem"), task.problem);
      EXPECT_EQ(line.at("expected"), task.expected);
      EXPECT_EQ(line.at("marked"), !line.at("answer").is_null());
      EXPECT_EQ(line.at("truncated"), line.at("stop") == "length");
      EXPECT_GT(line.at("read_tokens"), 0);
    }
  }
  const std::vector<ChainResults> all = Take(ReadChainResults(files));
  const ChainSummary summary = Take(SummarizeChains(all, {}));
  ASSERT_EQ(summary.arms.size(), arms.size());
  for (const ChainArmRow& arm : summary.arms) EXPECT_EQ(arm.chains, 3U);
  EXPECT_EQ(summary.arms[0].total_bits, 16);
  EXPECT_EQ(summary.arms[0].token_bytes, 2 * 2 * 128 * 2);
  EXPECT_EQ(summary.arms[1].total_bits, 0);
  // The first four tokens are exact, besides.
  EXPECT_NEAR(summary.arms[2].code_bits, 8, 0.4);
  EXPECT_GT(summary.arms[2].total_bits, summary.arms[2].code_bits);
  EXPECT_NEAR(summary.arms[3].code_bits, 3, 0.5);
  // A control has the same histogram of levels: where the tokens are the same, as they are up to the first hand-over.
  for (size_t i = 0; i < all[3].answers.size(); i += 3) {
    EXPECT_GT(all[3].answers[i].code_bits, 0);
    EXPECT_EQ(all[3].answers[i].code_bits, all[4].answers[i].code_bits);
  }
  EXPECT_EQ(summary.arms[7].total_bits, 8.5);
}

TEST_F(ChainRunTest, GoesOnWhereItWasStopped) {
  std::vector<size_t> seen;
  std::atomic<bool> cancel{false};
  ChainRunHooks hooks;
  hooks.cancel = &cancel;
  hooks.on_hop = [&](size_t done, size_t) {
    seen.push_back(done);
    cancel = done > 6;
  };
  EXPECT_EQ(Run("uniform@4", hooks).code(), StatusCode::kCancelled);
  // Two chains of three hops, then one chain.
  EXPECT_EQ(seen, (std::vector<size_t>{0, 2, 4, 6, 7}));
  EXPECT_EQ(Take(ReadResults(FileOf("uniform@4"), kHopKind)).lines.size(), 6U);
  cancel = false;
  seen.clear();
  hooks.on_hop = [&](size_t done, size_t) { seen.push_back(done); };
  EXPECT_TRUE(Run("uniform@4", hooks).ok());
  EXPECT_EQ(seen, (std::vector<size_t>{6, 7, 8}));
  EXPECT_EQ(Take(ReadResults(FileOf("uniform@4"), kHopKind)).lines.size(), 9U);
}

TEST_F(ChainRunTest, AFileOfAnotherRunIsRefused) {
  ASSERT_TRUE(Run("uniform@4").ok());
  ChainRunHooks hooks;
  hooks.beside = {FileOf("uniform@4")};
  EXPECT_TRUE(Run("f16", hooks).ok());
  // Another arm beside it, before anything is done.
  set_.request.generate.predict += 1;
  const Status beside = Run("local@4", hooks);
  EXPECT_EQ(beside.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(beside.message().find("\"generate\" differs"), std::string::npos) << beside.message();
  EXPECT_FALSE(std::filesystem::exists(FileOf("local@4")));
  set_.request.generate.predict -= 1;
  set_.tasks.begin()->second.back().expected += 1;
  const Status other = Run("uniform@4");
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(other.message().find("\"expected\" differs"), std::string::npos) << other.message();
}

}  // namespace
}  // namespace qkvshare
