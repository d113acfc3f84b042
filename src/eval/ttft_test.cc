#include "eval/ttft.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

TEST(TtftLine, ReadsWhatItWrites) {
  TtftLine line;
  line.depth = 1024;
  line.way = StateWayOf(CacheType::kQ8_0);
  line.runs = 3;
  line.bytes = 77;
  line.total = {30, 20, 40};
  line.stages = {{"read and inject", {10, 5, 12}}, {"first token", {1, 0, 2}}};
  line.speedup = 2.5;
  line.write = Spread{3, 2, 4};
  line.first_token = 0;
  const TtftLine read = *ParseTtft(TtftJson(line));
  EXPECT_EQ(TtftJson(read), TtftJson(line));
  EXPECT_EQ(read.way, "Q8_0 state");
  EXPECT_EQ(read.first_token, 0);
  EXPECT_EQ(read.stages[0].time.most_us, 12);
  EXPECT_EQ(read.write->most_us, 4);
  nlohmann::ordered_json lacking = TtftJson(line);
  lacking["total"].erase("least_us");
  EXPECT_EQ(ParseTtft(lacking).status().code(), StatusCode::kCorrupt);
}

class MeasureTtftTest : public SessionTest {
 protected:
  TtftRequest Request() const {
    TtftRequest request;
    request.text = "The water of the spring is cold, and nobody grinds corn there now.";
    request.depths = {70, 150};
    request.suffix = 9;
    request.repeats = 4;
    request.pack.code_bits = 16;
    request.session = SmallOptions();
    request.folder = Path("ttft");
    return request;
  }

  static const TtftLine& Find(const TtftReport& report, size_t depth, const std::string& way) {
    const auto found = std::find_if(report.lines.begin(), report.lines.end(),
                                    [&](const TtftLine& line) { return line.depth == depth && line.way == way; });
    EXPECT_NE(found, report.lines.end()) << way;
    return found == report.lines.end() ? report.lines.front() : *found;
  }
};

// What is timed must be the same work: after exact rows each way has the token that prefill of all of it gives.
TEST_F(MeasureTtftTest, EachWayComesToTheSameToken) {
  const auto model = LoadTiny({});
  size_t steps = 0, depths = 0;
  TtftRequest request = Request();
  request.on_step = [&](const std::string&) { ++steps; };
  request.on_depth = [&](std::span<const TtftLine> lines) { depths += lines.size() == 7 ? 1 : 0; };
  const TtftReport report = Take(MeasureTtft(*model, request));
  ASSERT_EQ(report.lines.size(), 14u);
  EXPECT_EQ(depths, 2u);
  EXPECT_GT(steps, 2u * 4 * 6);
  for (const size_t depth : request.depths) {
    const std::vector<int32_t> once = model->Tokenize(request.text, /*add_special=*/true);
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < depth + request.suffix; ++i) tokens.push_back(once[i % once.size()]);
    const auto session = MakeSession(*model);
    Prefill(session.get(), tokens);
    const std::vector<float> logits = Logits(*session);
    const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    for (const char* way : {kReprefillWay, "F16 state", kCardRestoredWay, kCardAttachedWay}) {
      EXPECT_EQ(Find(report, depth, way).first_token, best) << way;
      EXPECT_EQ(Find(report, depth, way).runs, 4) << way;
      EXPECT_GT(Find(report, depth, way).speedup, 0) << way;
    }
    EXPECT_EQ(Find(report, depth, kSenderWay).runs, 4);
  }
}

TEST_F(MeasureTtftTest, PrefillsThreeTimesWhereThatTakesLong) {
  const auto model = LoadTiny({});
  TtftRequest request = Request();
  request.depths = {70};
  request.prefill_us = 0;
  const TtftReport report = Take(MeasureTtft(*model, request));
  for (const TtftLine& line : report.lines) {
    const bool prefills = line.way == kSenderWay || line.way == kReprefillWay;
    EXPECT_EQ(line.runs, prefills ? 3 : 4) << line.way;
  }
}

TEST_F(MeasureTtftTest, RefusesWhatCannotBeMeasured) {
  const auto model = LoadTiny({});
  const auto code_of = [&](const TtftRequest& request) { return MeasureTtft(*model, request).status().code(); };
  TtftRequest request = Request();
  request.depths = {};
  EXPECT_EQ(code_of(request), StatusCode::kInvalidArgument);
  request.depths = {70, 70};
  EXPECT_EQ(code_of(request), StatusCode::kInvalidArgument);
  request = Request();
  request.text = "";
  EXPECT_EQ(code_of(request), StatusCode::kInvalidArgument);
  request = Request();
  request.pack.code_bits = 1;
  EXPECT_EQ(code_of(request), StatusCode::kInvalidArgument);
  request = Request();
  const std::atomic<bool> cancel{true};
  request.session.cancel = &cancel;
  EXPECT_EQ(code_of(request), StatusCode::kCancelled);
}

TEST_F(MeasureTtftTest, GoesOnWithTheNextDepth) {
  const auto model = LoadTiny({});
  TtftRequest request = Request();
  request.repeats = 1;
  request.results = Path("ttft.jsonl");
  std::atomic<bool> cancel{false};
  request.session.cancel = &cancel;
  request.on_depth = [&](std::span<const TtftLine>) { cancel = true; };  // after the first one
  EXPECT_EQ(MeasureTtft(*model, request).status().code(), StatusCode::kCancelled);
  cancel = false;
  size_t measured = 0;
  request.on_depth = [&](std::span<const TtftLine> lines) { measured += lines.front().depth; };
  const TtftReport report = Take(MeasureTtft(*model, request));
  EXPECT_EQ(measured, 150u);
  EXPECT_EQ(report.lines.size(), 14u);
  EXPECT_EQ(report.lines.front().depth, 70u);
  request.suffix = 8;
  EXPECT_EQ(MeasureTtft(*model, request).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace qkvshare
