#include "eval/chain_difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace qkvshare {
namespace {

constexpr size_t kHops = 3;

// Blocks of kHops chains with as many problems, turned. right: of a chain and hop.
template <typename Right>
ChainResults Arm(size_t chains, Right right) {
  ChainResults results;
  results.hops = kHops;
  for (size_t chain = 0; chain < chains; ++chain) {
    for (size_t hop = 0; hop < kHops; ++hop) {
      ChainAnswer& answer = results.answers.emplace_back();
      answer.chain = "sheet-" + std::to_string(chain);
      answer.problem = "gsm8k-" + std::to_string(chain / kHops * kHops + (chain + hop) % kHops);
      answer.hop = hop;
      answer.right = right(chain, hop);
    }
  }
  return results;
}
bool Always(size_t, size_t) { return true; }

TEST(ChainDifferenceTest, IsOfTheAnswersAfterAHandOver) {
  const ChainResults f16 = Arm(30, Always);
  // The first hop is wrong everywhere, the second in 6 of 30 chains.
  const ChainResults arm = Arm(30, [](size_t chain, size_t hop) { return hop == 2 || (hop == 1 && chain % 5 > 0); });
  const ChainDifference difference = DifferenceAfterHandOver(arm, f16);
  EXPECT_EQ(difference.blocks, 10U);
  EXPECT_EQ(difference.answers, 60U);
  EXPECT_DOUBLE_EQ(difference.right.value, -0.1);
  EXPECT_LT(difference.right.low, -0.1);
  EXPECT_GT(difference.right.high, -0.1);
  EXPECT_LT(difference.right.high, 0);
  EXPECT_DOUBLE_EQ(DifferenceAfterHandOver(f16, arm).right.value, 0.1);
  EXPECT_EQ(DifferenceAfterHandOver(f16, Arm(30, Always)).right.high, 0);
}

// As many answers are wrong in each case: the more of them belong together, the less is known.
TEST(ChainDifferenceTest, AnswersOfAChainOrAProblemAreNoIndependentSamples) {
  const ChainResults all = Arm(60, Always);
  const auto width = [&](auto right) {
    const Interval found = DifferenceAfterHandOver(Arm(60, right), all).right;
    EXPECT_DOUBLE_EQ(found.value, -0.1);
    return found.high - found.low;
  };
  // One answer in 12 blocks, both of a chain in 6, both of a problem (the last of the block) in 6, all of two blocks.
  const double apart = width([](size_t chain, size_t hop) { return hop != 1 || chain % 3 > 0 || chain >= 36; });
  const double chains = width([](size_t chain, size_t) { return chain % 3 > 0 || chain >= 18; });
  const double problems = width([](size_t chain, size_t hop) { return (chain + hop) % 3 != 2 || chain >= 18; });
  const double blocks = width([](size_t chain, size_t) { return chain >= 6; });
  EXPECT_GT(chains, 1.2 * apart);
  EXPECT_GT(problems, 1.2 * apart);
  EXPECT_GT(blocks, 1.2 * chains);
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
