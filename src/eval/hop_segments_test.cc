#include "eval/hop_segments.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/prompt.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

using Distances = std::vector<std::pair<std::string, uint32_t>>;

class HopSegmentsTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    model_ = LoadTiny(TinyModelSpec());
    chain_.id = "sheet";
    chain_.messages = {{"system", "You count."}, {"user", "Two sums. One: 1 + 1. Two: 2 + 2. Begin."}};
  }
  std::vector<int32_t> Prompt() const {
    return model_->Tokenize(Take(model_->ApplyChatTemplate(chain_.messages, true)), true);
  }
  std::string TextOf(const std::vector<int32_t>& prompt, const Segment& segment) const {
    return model_->Detokenize(
        {prompt.begin() + segment.first_token, prompt.begin() + segment.first_token + segment.tokens});
  }
  static Distances ReadersOf(const Segment& segment) {
    Distances readers;
    for (const SegmentReader& reader : segment.readers) readers.emplace_back(reader.agent, reader.distance);
    return readers;
  }

  std::unique_ptr<Model> model_;
  HopChain chain_;
};

TEST_F(HopSegmentsTest, WithoutPartsAllHopsWorkOnTheLastMessage) {
  const std::vector<Segment> segments = Take(SegmentsOfPrompt(0, 3, chain_, Prompt(), *model_));
  ASSERT_EQ(segments.size(), 2U);
  EXPECT_EQ(ReadersOf(segments[0]), (Distances{{"hop 1", 2}, {"hop 2", 3}}));
  EXPECT_EQ(ReadersOf(segments[1]), (Distances{{"hop 1", 1}, {"hop 2", 2}}));
  EXPECT_EQ(ReadersOf(SegmentOfAnswer(0, 3, chain_, 10, 4)), (Distances{{"hop 1", 1}, {"hop 2", 2}}));
  EXPECT_EQ(ReadersOf(Take(SegmentsOfPrompt(1, 3, chain_, Prompt(), *model_)).back()), (Distances{{"hop 2", 2}}));
}

TEST_F(HopSegmentsTest, APartIsReadByItsHopsAlone) {
  chain_.parts = {{"One: 1 + 1.", {0}}, {"Two: 2 + 2.", {1, 2}}};
  const std::vector<int32_t> prompt = Prompt();
  const std::vector<Segment> segments = Take(SegmentsOfPrompt(0, 3, chain_, prompt, *model_));
  ASSERT_EQ(segments.size(), 6U);
  uint32_t done = 0;
  for (const Segment& segment : segments) {
    EXPECT_EQ(segment.first_token, done);
    done += segment.tokens;
  }
  EXPECT_EQ(done, prompt.size());
  EXPECT_EQ(TextOf(prompt, segments[2]), "One: 1 + 1.");
  EXPECT_EQ(ReadersOf(segments[2]), Distances());
  EXPECT_EQ(TextOf(prompt, segments[4]), "Two: 2 + 2.");
  EXPECT_EQ(ReadersOf(segments[4]), (Distances{{"hop 1", 1}, {"hop 2", 1}}));
  for (const size_t i : {0, 1, 3, 5}) EXPECT_EQ(ReadersOf(segments[i]), (Distances{{"hop 1", 2}, {"hop 2", 3}}));
  EXPECT_EQ(ReadersOf(SegmentOfAnswer(0, 3, chain_, 10, 4)), (Distances{{"hop 1", 2}, {"hop 2", 3}}));
  // They are of the first prompt.
  EXPECT_EQ(Take(SegmentsOfPrompt(1, 3, chain_, prompt, *model_)).size(), 1U);
}

TEST_F(HopSegmentsTest, APartThatIsNotThereIsRefused) {
  for (const std::string text : {"Three: 3 + 3.", ""}) {
    chain_.parts = {{text, {1}}};
    const auto segments = SegmentsOfPrompt(0, 3, chain_, Prompt(), *model_);
    EXPECT_EQ(segments.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(segments.status().message().find("chain sheet"), std::string::npos) << segments.status().message();
  }
}

}  // namespace
}  // namespace qkvshare
