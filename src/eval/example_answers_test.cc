#include "eval/example_answers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace qkvshare {
namespace {

TEST(ExampleAnswersTest, SayOneSolutionInSeveralWays) {
  const GsmProblem problem = {
      "How many?", "She has 24/2 = 12 cats.\nSo there are 24+12 = $36 in all.\n#### 36", "36", {"24/2=12", "24+12=36"}};
  const std::optional<ExampleAnswers> answers = ExampleAnswersOf(problem);
  ASSERT_TRUE(answers.has_value());
  EXPECT_EQ(answers->in_words, problem.answer);
  EXPECT_EQ(answers->with_slip, "She has 24/2 = 12 cats.\nSo there are 24+12 = $46 in all.\n#### 46");
  EXPECT_EQ(answers->in_equations, "24/2 = 12\n24+12 = 36\n#### 36");
}

TEST(ExampleAnswersTest, ASlipOfASmallNumberIsSmall) {
  const std::optional<ExampleAnswers> answers = ExampleAnswersOf({"?", "It is 2+3=5.\n#### 5", "5", {"2+3=5"}});
  ASSERT_TRUE(answers.has_value());
  EXPECT_EQ(answers->with_slip, "It is 2+3=6.\n#### 6");
}

TEST(ExampleAnswersTest, AreNoneWhereTheLastEquationIsNotTheAnswer) {
  const std::vector<GsmProblem> problems = {
      {"?", "It is 5.\n#### 5", "5", {}},
      {"?", "It is 2+3=5.\n#### 5", "5", {}},  // not annotated
      {"?", "It is 2+3=5, less 1: 4.\n#### 4", "4", {"2+3=5"}},
      {"?", "Sam has 4=4, so 2+3=50.\n#### 5", "5", {"2+3=5"}},
      {"?", "It is 2+3=5,000.\n#### 5", "5", {"2+3=5"}},
      {"?", "It is 1/2=0.5.\n#### 0.5", "0.5", {"1/2=0.5"}},
      {"?", "2+3 = 5\n#### 5", "5", {"2+3=5"}},  // equations already
      {"?", "It is 2+3=5.\n#### 5", "5", {"no equation"}},
  };
  for (const GsmProblem& problem : problems) EXPECT_FALSE(ExampleAnswersOf(problem).has_value()) << problem.answer;
}

}  // namespace
}  // namespace qkvshare
