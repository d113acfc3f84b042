#include "eval/hop_kl_arm.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace qkvshare {
namespace {

TEST(HopKlArmTest, ParsesThoseOfChainsAndItsOwn) {
  const Result<HopKlArm> once = ParseHopKlArm("once@4,levels=K4V4");
  ASSERT_TRUE(once.has_value()) << once.status().message();
  EXPECT_EQ(once->way, HopKlWay::kOnce);
  EXPECT_EQ(once->arm.name, "once@4,levels=K4V4");
  EXPECT_EQ(once->arm.hand_over, HandOver::kCards);
  EXPECT_EQ(once->arm.card.pack.policy, Policy::kUniform);
  const Result<HopKlArm> floor = ParseHopKlArm("floor");
  ASSERT_TRUE(floor.has_value());
  EXPECT_EQ(floor->way, HopKlWay::kFloor);
  EXPECT_EQ(floor->arm.hand_over, HandOver::kSequence);
  const Result<HopKlArm> chain = ParseHopKlArm("requantized@4.0");
  ASSERT_TRUE(chain.has_value());
  EXPECT_EQ(chain->way, HopKlWay::kChain);
  EXPECT_EQ(chain->arm.name, "requantized@4");
}

TEST(HopKlArmTest, SaysWhatThereIs) {
  const auto says = [](const std::string& text, const std::string& part) {
    const Status status = ParseHopKlArm(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  says("f16", "compared with");
  says("text", "its tokens are others");
  says("best@4", "once@BITS and floor");
  says("once", "packed as");
  says("once@4,inject=restore", "attached");
  EXPECT_FALSE(ParseHopKlArms(std::vector<std::string>{"floor", "floor"}).has_value());
  EXPECT_FALSE(ParseHopKlArms(std::vector<std::string>{}).has_value());
  EXPECT_TRUE(ParseHopKlArms(DefaultHopKlArms()).has_value());
}

TEST(HopKlArmTest, ASingleHandOverIsWhatTheOthersAreComparedWith) {
  EXPECT_EQ(HopKlReferences(std::vector<std::string>{"uniform@4", "once@8", "once@4"}),
            (std::vector<std::string>{"once@8", "once@4"}));
  EXPECT_EQ(HopKlReferences(std::vector<std::string>{"uniform@4", "floor"}), std::vector<std::string>{"uniform@4"});
}

}  // namespace
}  // namespace qkvshare
