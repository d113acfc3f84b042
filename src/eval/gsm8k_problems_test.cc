#include "eval/gsm8k_problems.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace qkvshare {
namespace {

Result<std::vector<GsmProblem>> Read(const std::string& content) {
  const std::string path = testing::TempDir() + "problems.jsonl";
  std::ofstream(path, std::ios::binary) << content;
  Result<std::vector<GsmProblem>> problems = ReadGsmProblems(path);
  std::filesystem::remove(path);
  return problems;
}

TEST(GsmProblemsTest, HaveQuestionWorkedAnswerAndNumber) {
  const auto problems =
      Read(R"({"question": "How many?", "answer": "She sold 48/2 = <<48/2=24>>24.\nAnd <<1+1=2>>2.\n#### 1,024"})"
           "\n\n"
           R"({"question": "How far?", "answer": "Down.\n#### -2.5"})");
  ASSERT_TRUE(problems.has_value()) << problems.status().message();
  ASSERT_EQ(problems->size(), 2U);
  EXPECT_EQ((*problems)[0].question, "How many?");
  EXPECT_EQ((*problems)[0].answer, "She sold 48/2 = 24.\nAnd 2.\n#### 1,024");
  EXPECT_EQ((*problems)[0].number, "1024");
  EXPECT_EQ((*problems)[1].number, "-2.5");
}

TEST(GsmProblemsTest, AnnotationsWithoutEndStay) {
  const auto problems = Read(R"({"question": "Q", "answer": "1 << 2\n#### 4"})");
  ASSERT_TRUE(problems.has_value());
  EXPECT_EQ((*problems)[0].answer, "1 << 2\n#### 4");
}

TEST(GsmProblemsTest, OtherLinesAreNamed) {
  const std::string good = R"({"question": "Q", "answer": "A\n#### 4"})";
  for (const char* bad :
       {"nonsense", R"({"question": "Q"})", R"({"question": "Q", "answer": "A"})",
        R"({"question": "", "answer": "A\n#### 4"})", R"({"question": 1, "answer": "A\n#### 4"})",
        R"({"question": "Q", "answer": "A\n#### four"})", R"({"question": "Q", "answer": "A\n#### 4."})",
        R"({"question": "Q", "answer": "A\n#### -"})", "[]"}) {
    const auto problems = Read(good + "\n" + bad + "\n");
    EXPECT_EQ(problems.status().code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(problems.status().message().find("line 2"), std::string::npos) << problems.status().message();
  }
  EXPECT_EQ(Read("\n").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadGsmProblems("/there/is/none").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace qkvshare
