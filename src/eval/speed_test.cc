#include "eval/speed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

Timing Of(const char* way, int64_t us) { return {way, us, us, us}; }

TEST(SpeedReport, BandwidthIsThatOfWhatTheCardAdds) {
  SpeedReport report;
  report.attended_bytes = 6'000'000;
  EXPECT_EQ(report.AttentionBandwidth(), 0);  // not measured
  report.tests = {{"suffix 32", 1, {Of("fused", 1)}},
                  {"decode", 1, {Of("fused", 5000), Of("F16", 9000), Of("no card", 3000)}}};
  EXPECT_EQ(report.AttentionBandwidth(), 3e9);
  report.tests[1].ways[2].median_us = 5000;
  EXPECT_EQ(report.AttentionBandwidth(), 0);  // no time is left
}

class MeasureSpeedTest : public SessionTest {
 protected:
  SpeedRequest Request(std::vector<std::string> tests) const {
    SpeedRequest request;
    request.text = "The water of the spring is cold.";
    request.depth = 80;
    request.repeats = 4;
    request.tests = std::move(tests);
    request.folder = Path("bench");
    request.session = SmallOptions();
    return request;
  }

  // Prefilled contexts that are kept.
  size_t Kept() const {
    const std::filesystem::directory_iterator files(Path("bench"));
    return static_cast<size_t>(
        std::count_if(begin(files), end(files), [](const auto& file) { return file.path().extension() == ".card"; }));
  }
};

TEST_F(MeasureSpeedTest, MeasuresWhatIsAskedFor) {
  const auto model = LoadTiny({});
  SpeedRequest request = Request({"suffix"});
  size_t steps = 0;
  request.on_step = [&](const std::string&) { ++steps; };
  const SpeedReport report = Take(MeasureSpeed(*model, request));
  ASSERT_EQ(report.tests.size(), 2u);
  EXPECT_EQ(report.tests[0].name, "suffix 32");
  EXPECT_EQ(report.tests[1].name, "suffix 512");
  EXPECT_EQ(report.tests[0].runs, 4);
  EXPECT_FALSE(report.memory);
  EXPECT_EQ(report.machine_bandwidth, 0);
  EXPECT_GE(steps, 2u * 5);  // a turn more than there are runs: the first warms up
  EXPECT_EQ(MeasureSpeed(*model, Request({"suffix", "sufix"})).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(MeasureSpeedTest, RunsLongTestsThreeTimes) {
  const auto model = LoadTiny({});
  SpeedRequest request = Request({"no-card"});
  EXPECT_EQ(Take(MeasureSpeed(*model, request)).tests[0].runs, 16);
  request.test_us = 0;
  for (const SpeedTest& test : Take(MeasureSpeed(*model, request)).tests) EXPECT_EQ(test.runs, 3) << test.name;
  request.repeats = 1;
  request.tests = {"suffix"};
  EXPECT_EQ(Take(MeasureSpeed(*model, request)).tests[0].runs, 1);
}

TEST_F(MeasureSpeedTest, WarmsUpBeforeLongTestsToo) {
  const auto model = LoadTiny({});
  SpeedRequest request = Request({"suffix"});
  request.test_us = 0;
  std::vector<std::string> steps;
  request.on_step = [&](const std::string& step) {
    if (step.starts_with("suffix 32 ")) steps.push_back(step);
  };
  EXPECT_EQ(Take(MeasureSpeed(*model, request)).tests[0].runs, 3);
  EXPECT_EQ(steps, (std::vector<std::string>{"suffix 32 0/4", "suffix 32 1/4", "suffix 32 2/4", "suffix 32 3/4"}));
}

TEST_F(MeasureSpeedTest, LeavesOutCachesThatLlamaDoesNotHaveForTheModel) {
  TinyModelSpec spec;
  spec.key_dim = 80;
  const auto model = LoadTiny(spec);
  const SpeedReport report = Take(MeasureSpeed(*model, Request({"decode", "first-token"})));
  const auto names = [&](const char* test) {
    std::vector<std::string> ways;
    for (const Timing& timing : report.Find(test)->ways) ways.push_back(timing.way);
    return ways;
  };
  EXPECT_EQ(names(kDecodeTest), (std::vector<std::string>{kFusedWay, kF16Way, kNoCardWay, kLlamaWay}));
  EXPECT_EQ(names(kFirstTokenTest), (std::vector<std::string>{kHandOverWay, "attached", "warm F16", "F16 state"}));
  ASSERT_EQ(report.left_out.size(), 2u);
  for (const char* way : {kQ8Way, kQ4Way})
    EXPECT_NE(report.left_out.at(way).find("the model's have 80"), std::string::npos);
  EXPECT_TRUE(Take(MeasureSpeed(*LoadTiny({}, "other.gguf"), Request({}))).left_out.empty());
}

// What is kept for one run must not serve another whose rows or times differ.
TEST_F(MeasureSpeedTest, KeepsAContextForEachOfTheSettingsThatItDependsOn) {
  const auto model = LoadTiny({});
  SpeedRequest request = Request({});
  const auto kept_after = [&] {
    Take(MeasureSpeed(*model, request));
    return Kept();
  };
  EXPECT_EQ(kept_after(), 1u);
  EXPECT_EQ(kept_after(), 1u);
  request.session.batch = 32;
  EXPECT_EQ(kept_after(), 2u);
  request.session.rope_freq_base = 20000;
  EXPECT_EQ(kept_after(), 3u);
  request.session.rope_freq_scale = 0.5F;
  EXPECT_EQ(kept_after(), 4u);
  request.session.threads = 2;
  EXPECT_EQ(kept_after(), 5u);
  request.text += " And clear.";
  EXPECT_EQ(kept_after(), 6u);
  request.depth = 81;
  EXPECT_EQ(kept_after(), 7u);
  request.session.flash_attention = false;
  EXPECT_EQ(kept_after(), 8u);
  EXPECT_EQ(kept_after(), 8u);
}

}  // namespace
}  // namespace qkvshare
