#include "eval/prompt_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "runtime/model_store.h"
#include "tests/session_fixture.h"

namespace qkvshare {
namespace {

class PromptSetTest : public SessionTest {
 protected:
  void SetUp() override {
    real_model_ = ResolveModel("smollm2-135m");  // before the cache folder is another
    SessionTest::SetUp();
    model_ = LoadTiny({});
  }
  static PromptSetRequest Request(PromptSet set, uint32_t tokens, bool chat = true) {
    PromptSetRequest request;
    request.set = set;
    request.context_tokens = tokens;
    request.prompts = 3;
    request.chat = chat;
    return request;
  }
  // Of problems that are told apart by their numbers.
  PromptSetRequest Problems(size_t count) const {
    PromptSetRequest request = Request(PromptSet::kGsm8k, 300);
    request.file = Path("problems.jsonl");
    std::ofstream file(request.file);
    for (size_t i = 0; i < count; ++i) {
      file << R"({"question": "What is )" << i << R"( and 1?", "answer": "It is more.\n#### )" << i + 1 << "\"}\n";
    }
    return request;
  }
  std::string Text(const std::vector<int32_t>& tokens) const { return model_->Detokenize(tokens); }
  static void CheckSegments(const EvalPrompt& prompt);

  Result<std::string> real_model_ = Status(StatusCode::kNotFound, "");
  std::unique_ptr<Model> model_;
};

void PromptSetTest::CheckSegments(const EvalPrompt& prompt) {
  uint32_t tokens = 0;
  std::set<std::string> roles;
  for (const Segment& segment : prompt.segments) {
    EXPECT_EQ(segment.first_token, tokens);
    tokens += segment.tokens;
    EXPECT_TRUE(roles.insert(segment.role).second) << segment.role;
  }
  EXPECT_EQ(tokens, prompt.context.size());
  for (const Continuation& continuation : prompt.continuations) {
    for (const std::string& role : continuation.roles) EXPECT_TRUE(roles.contains(role)) << role;
  }
}

TEST_F(PromptSetTest, NamesAreRead) {
  PromptSetRequest request;
  ASSERT_TRUE(ParsePromptSet("gsm8k:a:b.jsonl", &request).ok());
  EXPECT_EQ(request.set, PromptSet::kGsm8k);
  EXPECT_EQ(request.file, "a:b.jsonl");
  ASSERT_TRUE(ParsePromptSet("facts", &request).ok());
  EXPECT_EQ(request.set, PromptSet::kFacts);
  ASSERT_TRUE(ParsePromptSet("receivers", &request).ok());
  EXPECT_EQ(request.set, PromptSet::kReceivers);
  for (const char* bad : {"", "gsm8k", "gsm8k:", "facts:file", "fact", "Facts"}) {
    const Status status = ParsePromptSet(bad, &request);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find("gsm8k:FILE"), std::string::npos);
  }
}

TEST_F(PromptSetTest, DocumentsFillTheContextWithWholeSections) {
  for (const bool chat : {true, false}) {
    for (const uint32_t tokens : {1024U, 4096U, 8192U}) {
      const auto prompts = Take(MakePromptSet(*model_, Request(PromptSet::kFacts, tokens, chat)));
      ASSERT_EQ(prompts.size(), 3U);
      for (const EvalPrompt& prompt : prompts) {
        EXPECT_EQ(prompt.context.size(), tokens);
        CheckSegments(prompt);
        EXPECT_EQ(prompt.segments[0].role, "introduction");
        EXPECT_GE(prompt.segments.size(), 1U + tokens / 1024);
        const std::string text = Text(prompt.context);
        for (size_t i = 1; i < prompt.segments.size(); ++i)
          EXPECT_NE(text.find("## " + prompt.segments[i].role + "\n"), std::string::npos);
        EXPECT_TRUE(text.ends_with(chat ? ".\n\n<|im_end|>\n" : ".\n\n")) << text.substr(text.size() - 30);
      }
    }
  }
}

TEST_F(PromptSetTest, AnswersAreInTheContextOnly) {
  const auto prompts = Take(MakePromptSet(*model_, Request(PromptSet::kFacts, 4096)));
  for (const EvalPrompt& prompt : prompts) {
    EXPECT_EQ(prompt.continuations.size(), 10U);
    const std::string context = Text(prompt.context);
    std::set<std::string> ids;
    for (const Continuation& continuation : prompt.continuations) {
      EXPECT_TRUE(ids.insert(continuation.id).second);
      EXPECT_EQ(continuation.kind, "question");
      EXPECT_TRUE(continuation.instruction.empty());
      const std::string turn = Text(continuation.turn), answer = Text(continuation.answer);
      EXPECT_TRUE(turn.starts_with("<|im_start|>user\n")) << turn;
      EXPECT_TRUE(turn.ends_with("?<|im_end|>\n<|im_start|>assistant\n")) << turn;
      ASSERT_FALSE(answer.empty());
      EXPECT_EQ(turn.find(answer), std::string::npos) << turn << answer;
      EXPECT_NE(context.find(answer), std::string::npos) << turn << answer;
    }
  }
}

TEST_F(PromptSetTest, ReceiversHaveInstructionsApartFromTurns) {
  const auto prompts = Take(MakePromptSet(*model_, Request(PromptSet::kReceivers, 4096)));
  for (const EvalPrompt& prompt : prompts) {
    CheckSegments(prompt);
    std::set<std::vector<int32_t>> instructions;
    size_t questions = 0, tasks = 0, parts = 0;
    for (const Continuation& continuation : prompt.continuations) {
      EXPECT_TRUE(instructions.insert(continuation.instruction).second);
      EXPECT_TRUE(Text(continuation.instruction).starts_with("<|im_start|>user\n")) << Text(continuation.instruction);
      EXPECT_TRUE(Text(continuation.turn).starts_with("\n\n")) << Text(continuation.turn);
      EXPECT_EQ(continuation.roles.size(), continuation.kind == "part" ? 1U : 0U);
      questions += continuation.kind == "question" ? 1 : 0;
      tasks += continuation.kind == "instruction" ? 1 : 0;
      parts += continuation.kind == "part" ? 1 : 0;
      if (continuation.kind == "question") {
        EXPECT_FALSE(continuation.answer.empty());
      }
      if (continuation.kind == "instruction") {
        EXPECT_TRUE(continuation.answer.empty());
      }
    }
    EXPECT_EQ(questions, 4U);
    EXPECT_EQ(tasks, 3U);
    EXPECT_EQ(parts, 3U);
  }
}

// In a small document a part's question could well be another receiver's, whose anchors would tell its answer.
TEST_F(PromptSetTest, NoTwoReceiversAskTheSame) {
  PromptSetRequest request = Request(PromptSet::kReceivers, 1024);
  request.prompts = 20;
  for (const EvalPrompt& prompt : Take(MakePromptSet(*model_, request))) {
    std::set<std::vector<int32_t>> turns;
    for (const Continuation& continuation : prompt.continuations) {
      if (!continuation.answer.empty()) {
        EXPECT_TRUE(turns.insert(continuation.turn).second) << prompt.id << ": " << Text(continuation.turn);
      }
    }
  }
}

TEST_F(PromptSetTest, TheSameRequestGivesTheSameTokens) {
  const auto contexts = [&](uint64_t seed, size_t count) {
    PromptSetRequest request = Request(PromptSet::kReceivers, 1024);
    request.seed = seed;
    request.prompts = count;
    std::vector<std::vector<int32_t>> all;
    for (const EvalPrompt& prompt : Take(MakePromptSet(*model_, request))) {
      all.push_back(prompt.context);
      for (const Continuation& continuation : prompt.continuations) all.push_back(continuation.turn);
    }
    return all;
  };
  const auto three = contexts(1, 3), two = contexts(1, 2), other = contexts(2, 3);
  EXPECT_EQ(contexts(1, 3), three);
  EXPECT_TRUE(std::equal(two.begin(), two.end(), three.begin()));  // more prompts do not change those before
  EXPECT_NE(three[0], other[0]);
}

TEST_F(PromptSetTest, GsmContextsHaveNotTheProblemThatIsAsked) {
  const PromptSetRequest request = Problems(40);
  const auto prompts = Take(MakePromptSet(*model_, request));
  ASSERT_EQ(prompts.size(), 3U);
  std::set<std::string> turns;
  for (const EvalPrompt& prompt : prompts) {
    CheckSegments(prompt);
    EXPECT_EQ(Text(prompt.context).find(Text(prompt.continuations.at(0).turn)), std::string::npos);
    EXPECT_LE(prompt.context.size(), request.context_tokens);
    EXPECT_GT(prompt.context.size(), request.context_tokens - 60);  // less than a problem's tokens are left
    EXPECT_TRUE(Text(prompt.context).starts_with("Question: What is "));
    ASSERT_EQ(prompt.continuations.size(), 1U);
    turns.insert(Text(prompt.continuations[0].turn));
    EXPECT_TRUE(Text(prompt.continuations[0].answer).starts_with(" It is more.\n#### "));
  }
  EXPECT_EQ(turns.size(), 3U);
}

TEST_F(PromptSetTest, MoreGsmPromptsLeaveThoseBeforeAsTheyAre) {
  PromptSetRequest request = Problems(12);
  const auto three = Take(MakePromptSet(*model_, request));
  request.prompts = 12;  // as many as there are problems
  const auto all = Take(MakePromptSet(*model_, request));
  ASSERT_EQ(all.size(), 12U);
  for (size_t i = 0; i < three.size(); ++i) {
    EXPECT_EQ(all[i].id, three[i].id);
    EXPECT_EQ(all[i].context, three[i].context);
    EXPECT_EQ(all[i].continuations[0].turn, three[i].continuations[0].turn);
  }
}

TEST_F(PromptSetTest, WhatCannotBeIsRefused) {
  EXPECT_EQ(MakePromptSet(*model_, Problems(2)).status().code(), StatusCode::kInvalidArgument);
  PromptSetRequest small = Problems(40);
  small.context_tokens = 64;
  const std::string longer(80, 'x');  // a token a letter
  std::ofstream file(small.file);
  for (int i = 0; i < 5; ++i) file << R"({"question": ")" << longer << R"(", "answer": "A\n#### 1"})" << "\n";
  file.close();
  const Status status = MakePromptSet(*model_, small).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("context of 64 tokens"), std::string::npos) << status.message();
  for (const uint32_t tokens : {0U, 63U, 100U}) {
    const auto prompts = MakePromptSet(*model_, Request(PromptSet::kFacts, tokens));
    EXPECT_EQ(prompts.status().code(), StatusCode::kInvalidArgument) << tokens;
  }
  PromptSetRequest none = Request(PromptSet::kFacts, 1024);
  none.prompts = 0;
  EXPECT_EQ(MakePromptSet(*model_, none).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(PromptSetTest, AModelWithoutTemplateHasNoChat) {
  EXPECT_TRUE(HasChat(*model_));
  TinyModelSpec spec;
  spec.chat_template = "";
  const auto plain = LoadTiny(spec, "plain.gguf");
  EXPECT_FALSE(HasChat(*plain));
  EXPECT_EQ(MakePromptSet(*plain, Request(PromptSet::kFacts, 1024)).status().code(), StatusCode::kUnsupported);
  const auto prompts = Take(MakePromptSet(*plain, Request(PromptSet::kReceivers, 4096, /*chat=*/false)));
  const std::string turn = plain->Detokenize(prompts[0].continuations[0].turn);
  EXPECT_TRUE(turn.ends_with("?\nAnswer:")) << turn;
  EXPECT_TRUE(plain->Detokenize(prompts[0].continuations[0].answer).starts_with(" "));
}

TEST_F(PromptSetTest, InstructionsOfARealModelHave20To60Tokens) {
  if (!real_model_.has_value()) GTEST_SKIP() << real_model_.status().message();
  const auto model = Take(Model::Load(*real_model_, {}));
  PromptSetRequest request = Request(PromptSet::kReceivers, 1024);
  request.prompts = 20;
  for (const EvalPrompt& prompt : Take(MakePromptSet(*model, request))) {
    EXPECT_EQ(prompt.context.size(), 1024U);
    for (const Continuation& continuation : prompt.continuations) {
      EXPECT_GE(continuation.instruction.size(), 20U);
      EXPECT_LE(continuation.instruction.size(), 60U) << model->Detokenize(continuation.instruction);
    }
  }
}

}  // namespace
}  // namespace qkvshare
