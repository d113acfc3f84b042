#include "agents/nearest_name.h"

#include <gtest/gtest.h>

namespace qkvshare {
namespace {

constexpr std::string_view kKnown[] = {"prompt", "predict", "stop", "bits", "to"};

TEST(NearestNameTest, FindsWhatIsTwoCharactersAwayAtMost) {
  EXPECT_EQ(NearestName("promt", kKnown), "prompt");
  EXPECT_EQ(NearestName("propmt", kKnown), "prompt");
  EXPECT_EQ(NearestName("predicts", kKnown), "predict");
  EXPECT_EQ(NearestName("bit", kKnown), "bits");
  EXPECT_EQ(NearestName("ot", kKnown), "");
  EXPECT_EQ(NearestName("model", kKnown), "");
  EXPECT_EQ(NearestName("", kKnown), "");
  EXPECT_EQ(NearestName("x", kKnown), "");
  EXPECT_EQ(NearestName("prompt", {}), "");
}

TEST(NearestNameTest, AsksOrSaysNothing) {
  EXPECT_EQ(DidYouMean("stopp", kKnown), "; did you mean 'stop'?");
  EXPECT_EQ(DidYouMean("temperature", kKnown), "");
}

}  // namespace
}  // namespace qkvshare
