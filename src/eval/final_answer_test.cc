#include "eval/final_answer.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace qkvshare {
namespace {

TEST(FinalAnswerTest, TakesTheNumberInWhateverFormItIsWritten) {
  const std::pair<const char*, double> cases[] = {
      {"She has 3 + 4 = 7.\n#### 7", 7},
      {"####7", 7},
      {"#### 7.", 7},
      {"#### 1,234", 1234},
      {"#### 12,345,678", 12345678},
      {"#### $1,234.50", 1234.5},
      {"#### 0.5", 0.5},
      {"#### .5", 0.5},
      {"#### 18.00", 18},
      {"#### -5", -5},
      {"#### - 5", -5},
      {"#### -$5", -5},
      {"#### $-5", -5},
      {"#### \xE2\x88\x92"
       "5",
       -5},
      {"#### +5", 5},
      {"#### 50%", 50},
      {"#### 50 %", 50},
      {"#### 18 dollars", 18},
      {"#### \xE2\x82\xAC"
       "18",
       18},
      {"#### **18**", 18},
      {"#### \\boxed{18}", 18},
      {"#### The answer is 18 eggs.", 18},
      {"#### 9 * 2 = $18", 18},
      {"#### 5 x 10 = 50 (x = all)", 50},
      {"#### 12 (= 1 dozen)", 12},
      {"#### 3 x 4 = 12 (= 1 dozen)", 12},
      {"#### = 5", 5},
      {"#### 18 ####", 18},
      {"#### 7\n####", 7},
      {"#### 7\n#### none", 7},
      {"#### 2 x 3 = 6 hours = 360 minutes", 360},
      {"#### x = y, so 4", 4},
      {"#### 3/4", 0.75},
      {"#### 1/0", 1},
      {"#### 20 miles/hour", 20},
      {"#### 10, 20", 10},
      {"#### 1,2345", 1},
      {"#### 007", 7},
      {"#### 7\nThat is 8 less than 15.", 7},
      {"#### 7\n#### 9", 9},
      {"####\n7", 7},
      {"####  \r\n 7\r\n", 7},
      {"##### 7", 7},
      {"#### A-5", 5},
      {"#### 100000000000", 1e11},
  };
  for (const auto& [text, number] : cases) {
    const std::optional<double> answer = FinalAnswer(text);
    ASSERT_TRUE(answer.has_value()) << text;
    EXPECT_TRUE(SameNumber(*answer, number)) << text << ": " << *answer;
  }
}

TEST(FinalAnswerTest, IsNoneWithoutMarkerOrNumber) {
  for (const char* text : {"", "The answer is 7.", "### 7", "7 ####", "#### none", "####", "#### ,", "#### -", "#### .",
                           "#### none ####"}) {
    EXPECT_FALSE(FinalAnswer(text).has_value()) << text;
  }
}

TEST(SameNumberTest, IsAboutTheNumberAndNotItsText) {
  EXPECT_TRUE(SameNumber(18, 18.0000001));
  EXPECT_TRUE(SameNumber(-0.0, 0));
  EXPECT_FALSE(SameNumber(18, 18.01));
  EXPECT_FALSE(SameNumber(18, -18));
  EXPECT_TRUE(SameNumber(1234567890, 1234567890));
  EXPECT_FALSE(SameNumber(0.0001, 0.0002));
}

TEST(NumberOfTest, TakesNothingBesides) {
  EXPECT_EQ(NumberOf("-12.5"), -12.5);
  EXPECT_EQ(NumberOf("1024"), 1024);
  for (const char* text : {"", "-", "1,024", "12 eggs", " 1"}) EXPECT_FALSE(NumberOf(text).has_value()) << text;
}

}  // namespace
}  // namespace qkvshare
