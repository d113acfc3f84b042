#include "eval/prompt_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <utility>

#include "eval/fidelity_check.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class PromptFileTest : public SessionTest {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    TinyModelSpec spec;
    spec.add_bos = true;
    model_ = LoadTiny(spec);
  }
  Result<std::vector<EvalPrompt>> Read(const std::string& text) const {
    std::ofstream(Path("p.jsonl")) << text;
    return ReadPromptFile(*model_, Path("p.jsonl"));
  }
  std::unique_ptr<Model> model_;
};

TEST_F(PromptFileTest, TakesTextsAndSections) {
  const std::vector<EvalPrompt> prompts = Take(Read(
      "{\"context\": \"The mill is old.\", \"turns\": [\" Why?\"]}\n\n"
      "{\"id\": \"b\", \"context\": [{\"role\": \"x\", \"text\": \"One.\"}, {\"role\": \"y\", \"text\": \" Two.\"}], "
      "\"turns\": [{\"id\": \"q\", \"kind\": \"part\", \"instruction\": \" Count.\", \"turn\": \" How many?\", "
      "\"answer\": \" 2\", \"roles\": [\"y\"]}, {\"turn\": \" And?\"}]}"));
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_TRUE(CheckPrompts(prompts).ok());
  EXPECT_EQ(prompts[0].id, "prompt 1");
  EXPECT_EQ(prompts[0].context, model_->Tokenize("The mill is old.", true));
  EXPECT_TRUE(prompts[0].segments.empty());
  ASSERT_EQ(prompts[0].continuations.size(), 1u);
  EXPECT_EQ(prompts[0].continuations[0].id, "1");
  EXPECT_EQ(prompts[0].continuations[0].kind, "turn");
  EXPECT_EQ(prompts[0].continuations[0].turn, model_->Tokenize(" Why?", false));
  EXPECT_TRUE(prompts[0].continuations[0].answer.empty());
  const EvalPrompt& b = prompts[1];
  std::vector<int32_t> one = model_->Tokenize("One.", true);
  const std::vector<int32_t> two = model_->Tokenize(" Two.", false);
  ASSERT_EQ(b.segments.size(), 2u);
  EXPECT_EQ(b.segments[0].tokens, one.size());
  EXPECT_EQ(b.segments[1].first_token, one.size());
  EXPECT_EQ(b.segments[1].role, "y");
  one.insert(one.end(), two.begin(), two.end());
  EXPECT_EQ(b.context, one);
  EXPECT_EQ(b.continuations[0].instruction, model_->Tokenize(" Count.", false));
  EXPECT_EQ(b.continuations[0].answer, model_->Tokenize(" 2", false));
  EXPECT_EQ(b.continuations[0].roles, std::vector<std::string>{"y"});
  EXPECT_EQ(b.continuations[1].id, "2");
}

TEST_F(PromptFileTest, NamesTheLineThatIsNone) {
  const std::string good = "{\"context\": \"a\", \"turns\": [\"bc\"]}\n";
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "there are no prompts in it"},
      {good + "\n[]\n", "line 3: it is no JSON object"},
      {good + "{\"context\": \"a\"", "line 2: it is no JSON object"},
      {"{\"turns\": [\"b\"]}", "line 1: it has no \"context\""},
      {"{\"context\": 1, \"turns\": [\"b\"]}", "\"context\" is neither"},
      {"{\"context\": [{\"text\": \"a\"}], \"turns\": [\"b\"]}", "lacks \"role\""},
      {"{\"context\": [{\"role\": \"a\", \"words\": \"a\"}], \"turns\": [\"b\"]}", "unknown member \"words\""},
      {"{\"context\": \"a\", \"turns\": \"b\"}", "\"turns\" is no list"},
      {"{\"context\": \"a\", \"turns\": [1]}", "a turn is neither"},
      {"{\"context\": \"a\", \"turns\": [{\"turn\": \"b\", \"roles\": [1]}]}", "\"roles\" is no list of texts"},
      {"{\"context\": \"a\", \"id\": 1, \"turns\": [\"b\"]}", "\"id\" is no text"},
      {"{\"context\": \"\xFF\", \"turns\": [\"b\"]}", "p.jsonl: "},
  };
  for (const auto& [text, part] : wrong) {
    const Status status = Read(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  EXPECT_EQ(ReadPromptFile(*model_, Path("none.jsonl")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace qkvshare
