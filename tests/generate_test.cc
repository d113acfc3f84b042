// What ends an answer, and what of it counts then.
#include "runtime/generate.h"

#include <gtest/gtest.h>

#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class StopTextTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    model_ = LoadTiny({});
    session_ = MakeSession(*model_);
    whole_ = Answer({});
  }
  GenerateOptions Options(std::vector<std::string> stop) {
    GenerateOptions options;
    options.sampling.temp = 0;
    options.predict = 30;
    options.stop = std::move(stop);
    return options;
  }
  Generation Give(const GenerateOptions& options) {
    session_->Clear();
    Prefill(session_.get(), SomeTokens(30));
    return Take(Generate(session_.get(), options));
  }
  Generation Answer(std::vector<std::string> stop) { return Give(Options(std::move(stop))); }
  // The text of the first tokens of the answer that nothing stops.
  std::string TextOf(size_t tokens) const {
    std::string text;
    for (size_t i = 0; i < tokens; ++i) text += model_->Piece(whole_.tokens[i]);
    return text;
  }
  // Whether the answer is the whole one's first tokens, up to the first that ends a text of so many bytes or more.
  void ExpectCut(const Generation& answer, size_t at, size_t end) {
    EXPECT_EQ(answer.stop, StopReason::kStopText);
    EXPECT_EQ(answer.text, whole_.text.substr(0, at));
    const size_t count = answer.tokens.size();
    ASSERT_GT(count, 0u);
    EXPECT_GE(TextOf(count).size(), end);
    EXPECT_LT(TextOf(count - 1).size(), end);
    EXPECT_EQ(answer.text + answer.cut, TextOf(count));
    EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), whole_.tokens.begin()));
    EXPECT_EQ(session_->tokens().size(), 30 + count - 1);
    ASSERT_TRUE(DecodeRest(answer, session_.get()).ok());
    EXPECT_EQ(session_->tokens().size(), 30 + count);
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
  Generation whole_;
};

TEST_F(StopTextTest, EndsTheAnswerWithinATokenOrAcrossSeveral) {
  EXPECT_EQ(whole_.stop, StopReason::kLength);
  EXPECT_EQ(whole_.tokens.size(), 30u);
  EXPECT_TRUE(whole_.cut.empty());
  for (const size_t length : {1u, 2u, 5u, 11u}) {
    SCOPED_TRACE(length);
    const std::string ending = whole_.text.substr(whole_.text.size() / 2, length);
    const size_t at = whole_.text.find(ending);
    ExpectCut(Answer({ending}), at, at + length);
  }
}

TEST_F(StopTextTest, TheFirstOfSeveralCounts) {
  const std::string late = whole_.text.substr(20, 4), early = whole_.text.substr(9, 3);
  const size_t at = whole_.text.find(early);
  ExpectCut(Answer({late, "not in the text", early}), at, at + early.size());
  // Of two that end with the same token, the one that begins first.
  const std::string longer = whole_.text.substr(9, 6), within = whole_.text.substr(12, 3);
  ASSERT_EQ(whole_.text.find(within), 12u);
  const Generation answer = Answer({within, longer});
  EXPECT_EQ(answer.text, whole_.text.substr(0, 9));
}

TEST_F(StopTextTest, MayBeAllThereIs) {
  const Generation at_once = Answer({whole_.text.substr(0, 1)});
  EXPECT_EQ(at_once.stop, StopReason::kStopText);
  EXPECT_EQ(at_once.tokens.size(), 1u);
  EXPECT_TRUE(at_once.text.empty());
  // The last token that may be sampled ends it: by the stop text all the same.
  GenerateOptions options = Options({whole_.text.substr(0, 3)});
  options.predict = Give(options).tokens.size();
  EXPECT_EQ(Give(options).stop, StopReason::kStopText);
  options.predict = 0;
  EXPECT_EQ(Give(options).stop, StopReason::kLength);
}

TEST_F(StopTextTest, IsShownNeitherInPartNorTwice) {
  const std::string ending = whole_.text.substr(whole_.text.size() / 2, 9);
  const std::string never = whole_.text.substr(5, 8) + "?";  // begins again and again
  const std::string at_the_end = whole_.text.substr(whole_.text.size() - 4) + "?";
  for (const std::string& stop : {ending, never, at_the_end}) {
    GenerateOptions options = Options({stop});
    std::string shown;
    options.on_text = [&](const std::string& piece) { shown += piece; };
    const Generation answer = Give(options);
    EXPECT_EQ(shown, answer.text);
    EXPECT_EQ(answer.stop, stop == ending ? StopReason::kStopText : StopReason::kLength);
  }
}

TEST_F(StopTextTest, AMarkedLineEndsTheAnswer) {
  // An answer with a line break in it, and text on both sides.
  GenerateOptions options = Options({});
  options.sampling.temp = 3;
  options.sampling.top_k = 0;
  options.sampling.top_p = 1;
  options.sampling.min_p = 0;
  options.predict = 100;
  size_t line = std::string::npos;
  for (options.sampling.seed = 1; options.sampling.seed < 50; ++options.sampling.seed) {
    whole_ = Give(options);
    line = whole_.text.find('\n', 8);
    if (line != std::string::npos && line + 8 < whole_.text.size()) break;
  }
  ASSERT_LT(options.sampling.seed, 50u);
  const auto expect = [&](const std::string& marker, size_t end) {
    SCOPED_TRACE(marker);
    options.stop_line = marker;
    std::string shown;
    options.on_text = [&](const std::string& piece) { shown += piece; };
    const Generation answer = Give(options);
    EXPECT_EQ(shown, answer.text);
    if (end == std::string::npos) {
      EXPECT_EQ(answer.stop, StopReason::kLength);
      EXPECT_EQ(answer.text, whole_.text);
    } else {
      ExpectCut(answer, end, end + 1);
    }
  };
  // The line has more than its marker, or the next one has.
  const size_t begin = line - 6;
  expect(whole_.text.substr(begin, 4), line);
  expect(whole_.text.substr(begin, 6), whole_.text.find('\n', whole_.text.find_first_not_of(" \t\r\n", line)));
  expect(whole_.text.substr(whole_.text.rfind('\n') + 1, 5), std::string::npos);
}

TEST_F(StopTextTest, AnEmptyOneIsRefused) {
  Prefill(session_.get(), {1});
  const size_t tokens = session_->tokens().size();
  EXPECT_EQ(Generate(session_.get(), Options({"x", ""})).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session_->tokens().size(), tokens);
}

TEST(StopReasonName, NamesAll) {
  EXPECT_STREQ(StopReasonName(StopReason::kStopText), "stop");
  EXPECT_STREQ(StopReasonName(StopReason::kLength), "length");
}

}  // namespace
}  // namespace qkvshare
