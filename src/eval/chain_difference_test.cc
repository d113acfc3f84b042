#include "eval/chain_difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace qkvshare {
namespace {

// Of `problems` chains of 3 hops, hop h of chain c on problem (c + h) % problems. right: of a chain and hop.
template <typename Right>
ChainResults Arm(size_t problems, Right right) {
  ChainResults results;
  results.hops = 3;
  for (size_t chain = 0; chain < problems; ++chain) {
    for (size_t hop = 0; hop < 3; ++hop) {
      ChainAnswer& answer = results.answers.emplace_back();
      answer.chain = "sheet-" + std::to_string(chain);
      answer.problem = "gsm8k-" + std::to_string((chain + hop) % problems);
      answer.hop = hop;
      answer.right = right(chain, hop);
    }
  }
  return results;
}

TEST(ChainDifferenceTest, IsOfTheAnswersAfterAHandOver) {
  const auto all = [](size_t, size_t) { return true; };
  const ChainResults f16 = Arm(10, all);
  // The first hop is wrong everywhere, the second in 2 of 10 chains.
  const ChainResults arm = Arm(10, [](size_t chain, size_t hop) { return hop == 2 || (hop == 1 && chain > 1); });
  const ChainDifference difference = DifferenceAfterHandOver(arm, f16);
  EXPECT_EQ(difference.problems, 10U);
  EXPECT_EQ(difference.answers, 20U);
  EXPECT_DOUBLE_EQ(difference.right.value, -0.1);
  EXPECT_LT(difference.right.low, -0.1);
  EXPECT_GT(difference.right.high, -0.1);
  EXPECT_LE(difference.right.high, 0);
  EXPECT_DOUBLE_EQ(DifferenceAfterHandOver(f16, arm).right.value, 0.1);
  EXPECT_EQ(DifferenceAfterHandOver(f16, Arm(10, all)).right.high, 0);
}

TEST(ChainDifferenceTest, AnswersOfOneProblemAreNoIndependentSamples) {
  // In both arms half of the later answers are right where the other's are wrong: in `whole` a problem differs at all
  // of its hops in one direction, in `mixed` in both, so that nothing can come out but 0.
  const ChainResults none = Arm(20, [](size_t chain, size_t hop) { return (chain + hop) % 20 >= 10; });
  const ChainResults whole = Arm(20, [](size_t chain, size_t hop) { return (chain + hop) % 20 < 10; });
  const Interval wide = DifferenceAfterHandOver(whole, none).right;
  EXPECT_DOUBLE_EQ(wide.value, 0);
  EXPECT_LT(wide.low, -0.2);
  const ChainResults first = Arm(20, [](size_t, size_t hop) { return hop == 1; });
  const ChainResults second = Arm(20, [](size_t, size_t hop) { return hop == 2; });
  const Interval narrow = DifferenceAfterHandOver(first, second).right;
  EXPECT_EQ(narrow.value, 0);
  EXPECT_EQ(narrow.low, 0);
  EXPECT_EQ(narrow.high, 0);
}

TEST(ChainDifferenceTest, IsNotKnownWithoutAnswersOfBoth) {
  ChainResults first_hop;
  first_hop.answers = {{"sheet-1", "gsm8k-1", 0, true}};
  const ChainDifference difference = DifferenceAfterHandOver(first_hop, first_hop);
  EXPECT_EQ(difference.answers, 0U);
  EXPECT_TRUE(std::isnan(difference.right.value));
}

}  // namespace
}  // namespace qkvshare
