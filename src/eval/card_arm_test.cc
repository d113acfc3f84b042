#include "eval/card_arm.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "policy/controller.h"

namespace qkvshare {
namespace {

CardArm Parse(const std::string& text) {
  const Result<CardArm> arm = ParseCardArm(text);
  EXPECT_TRUE(arm) << arm.status().message();
  return arm ? *arm : CardArm();
}

TEST(CardArm, TakesTheDefaultsOfPack) {
  const CardArm arm = Parse("local@3.25");
  const PackOptions usual;
  EXPECT_EQ(arm.pack.policy, Policy::kLocal);
  EXPECT_EQ(arm.pack.code_bits, 3.25);
  EXPECT_EQ(arm.pack.alpha, usual.alpha);
  EXPECT_EQ(arm.pack.features, usual.features);
  EXPECT_EQ(arm.pack.policy_seed, usual.policy_seed);
  EXPECT_TRUE(arm.pack.levels.empty());
  EXPECT_EQ(arm.inject, InjectMode::kFused);
  EXPECT_FALSE(arm.NeedsReceiver());
  EXPECT_FALSE(arm.Uses(Feature::kProbe));  // on by default, but local does not look at it
}

TEST(CardArm, TakesAllOptions) {
  const CardArm arm = Parse("topology@4,alpha=0.25,features=attention+probe,levels=K4V2/K4V4/exact,protect=8");
  EXPECT_EQ(arm.pack.policy, Policy::kTopology);
  EXPECT_EQ(arm.pack.alpha, 0.25);
  EXPECT_EQ(arm.pack.features, *ParseFeatures("attention,probe"));
  EXPECT_EQ(arm.pack.levels, (std::vector<Level>{{4, 2}, {4, 4}, kExactLevel}));
  EXPECT_EQ(arm.pack.protected_tokens, 8u);
  EXPECT_TRUE(arm.Uses(Feature::kProbe));
  EXPECT_FALSE(arm.Uses(Feature::kAnchors));
  const CardArm control = Parse("random@4,seed=7,control_of=topology,inject=restore");
  EXPECT_EQ(control.pack.policy, Policy::kRandom);
  EXPECT_EQ(control.pack.control_of, Policy::kTopology);
  EXPECT_EQ(control.pack.policy_seed, 7u);
  EXPECT_EQ(control.inject, InjectMode::kRestore);
  EXPECT_TRUE(control.NeedsReceiver());
  const CardArm sized = Parse("uniform,max_bytes=50000");
  EXPECT_EQ(sized.pack.max_bytes, 50'000u);
}

TEST(CardArm, LearnedHasItsController) {
  const CardArm arm = Parse("learned@3.25");
  EXPECT_EQ(arm.pack.policy, Policy::kLearned);
  ASSERT_NE(arm.pack.controller, nullptr);
  EXPECT_EQ(arm.pack.controller->name(), kDefaultController);
  EXPECT_EQ(arm.pack.features, arm.pack.controller->features());
  EXPECT_EQ(CardArmJson(arm)["controller"], ToHex(arm.pack.controller->id()));
  EXPECT_FALSE(CardArmJson(Parse("local@3.25")).contains("controller"));
  const CardArm control = Parse("random@3.25,control_of=learned");
  EXPECT_EQ(control.pack.controller->id(), arm.pack.controller->id());
  EXPECT_EQ(control.name, "random@3.25,control_of=learned");
  EXPECT_EQ(Parse("learned@3.25,controller=gsm8k").name, "learned@3.25");
}

TEST(CardArm, FitsTheWidthsOfLayers) {
  CardArm arm = Parse("uniform@4,layers=0-1:k=1/v=1;3:v=-1");
  EXPECT_TRUE(arm.pack.layers.empty());
  const std::vector<LayerShape> shapes(4, LayerShape{1, 32, 32});
  ASSERT_TRUE(FitCardArm({}, shapes, &arm).ok());
  EXPECT_EQ(arm.pack.layers, (std::vector<LayerAdjustment>{{1, 1}, {1, 1}, {0, 0}, {0, -1}}));
  const Status status = FitCardArm({}, {shapes.begin(), shapes.begin() + 3}, &arm);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("arm uniform@4,layers="), std::string::npos);
}

TEST(CardArm, OracleGoesByTheReceiverAlone) {
  const CardArm arm = Parse("oracle@3");
  EXPECT_TRUE(arm.oracle);
  EXPECT_EQ(arm.pack.policy, Policy::kTopology);
  EXPECT_EQ(arm.pack.alpha, 0);
  EXPECT_TRUE(arm.NeedsReceiver());
  EXPECT_FALSE(arm.Uses(Feature::kProbe));  // of its instruction
  EXPECT_EQ(Parse("oracle@3,alpha=0.5").pack.alpha, 0.5);
  EXPECT_FALSE(arm.oracle_of_turn);
  EXPECT_FALSE(CardArmJson(arm).contains("sees"));
  const CardArm of_turn = Parse("oracle@3,sees=turn");
  EXPECT_TRUE(of_turn.oracle_of_turn);
  EXPECT_EQ(CardArmJson(of_turn)["sees"], "turn");
}

// A name stands for the arm, however it was written, and can be given again.
TEST(CardArm, IsNamedByWhatDiffersFromTheDefaults) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"uniform@4.0", "uniform@4"},
      {"uniform@16", "exact"},
      {"exact", "exact"},
      {"exact,inject=restore", "exact,inject=restore"},
      {"local@3.250,protect=0", "local@3.25"},
      {"topology@4,alpha=0.5,inject=fused", "topology@4"},
      {"topology@4,inject=restore,alpha=0.30", "topology@4,alpha=0.3,inject=restore"},
      {"topology@4,features=probe+attention", "topology@4,features=attention+probe"},
      {"topology@4,features=-probe", "topology@4,features=default-probe"},
      {"topology@4,features=default-anchors+rarity", "topology@4,features=default-anchors+rarity"},
      {"topology@4,features=full", "topology@4,features=full"},
      {"topology@4,features=full-confidence-next_entropy", "topology@4,features=full-confidence-next_entropy"},
      {"topology@4,features=default", "topology@4"},
      {"local@4,levels=K4V4/K4V2/K8V4", "local@4,levels=K4V2/K4V4/K8V4"},
      {"random@4,control_of=local,seed=1", "random@4"},
      {"inverted@4,control_of=topology", "inverted@4,control_of=topology"},
      {"uniform@4,layers=0:k=1/v=1;2:v=1", "uniform@4,layers=0:k=1/v=1;2:v=1"},
      {"oracle@4,alpha=0", "oracle@4"},
      {"oracle@4,sees=all", "oracle@4"},
      {"oracle@4,sees=turn", "oracle@4,sees=turn"},
      {"local,max_bytes=70000", "local,max_bytes=70000"},
  };
  for (const auto& [text, name] : names) {
    EXPECT_EQ(Parse(text).name, name) << text;
    EXPECT_EQ(Parse(name).name, name);
    EXPECT_EQ(CardArmJson(Parse(name)), CardArmJson(Parse(text)));
  }
}

TEST(CardArm, RefusesWhatIsNoneAndWhatItWouldPassOver) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "unknown policy"},
      {"learned@4,controller=none", "no controller 'none': give a file, or one of gsm8k"},
      {"learned@4,features=rarity", "leave them out"},
      {"local@4,controller=gsm8k", "choose another policy than local"},
      {"oracle@4,controller=gsm8k", "an oracle has none"},
      {"oracle@4,sees=answer", "choose all or turn"},
      {"topology@4,sees=turn", "an oracle alone knows"},
      {"best@4", "choose uniform, local, topology, learned, random or inverted, oracle or exact"},
      {"uniform", "give its bits, as uniform@4"},
      {"uniform@", "no number of bits"},
      {"uniform@4x", "no number of bits"},
      {"uniform@nan", "nan bits: choose from 2 to 16"},
      {"uniform@1", "choose from 2 to 16"},
      {"uniform@4,", "unknown option ''"},
      {"uniform@4,bits=4", "unknown option 'bits'; choose from alpha"},
      {"uniform@4,protect", "protect has no value"},
      {"uniform@4,protect=", "protect has no value"},
      {"uniform@4,protect=-1", "protect"},
      {"uniform@4,protect=1,protect=2", "protect is there twice"},
      {"uniform@4,max_bytes=9", "leave out one of them"},
      {"uniform,max_bytes=0", "give at least 1"},
      {"uniform@4,inject=auto", "choose fused or restore"},
      {"uniform@4,inject=none", "none"},
      {"uniform@4,profile=/none/of.profile", "/none/of.profile"},
      {"local@4,levels=K4V3", "unknown level 'K4V3'"},
      {"local@4,levels=K4V4", "K4V4 is the only level"},
      {"local@4,features=magic", "unknown feature 'magic'"},
      {"topology@4,alpha=2", "0 to 1"},
      // Passed over:
      {"uniform@4,alpha=0.5", "alpha counts in"},
      {"local@4,alpha=0.5", "alpha counts in"},
      {"random@4,alpha=0.5", "alpha counts in"},
      {"local@4,seed=1", "seed counts in policy random"},
      {"inverted@4,seed=2", "seed counts in policy random"},
      {"topology@4,control_of=local", "control_of counts in"},
      {"uniform@4,features=default", "policy uniform looks at none"},
      {"local@4,features=attention+probe", "feature probe is of the receivers"},
      {"random@4,features=+anchors", "feature anchors is of the receivers"},
      {"topology@4,features=attention", "knows nothing of the receivers; use local"},
      {"oracle@4,features=probe", "an oracle looks at the receiver's queries alone"},
      {"oracle@4,seed=2", "seed counts in policy random"},
      {"exact,protect=4", "protect: at 16 bits every token is exact"},
      {"uniform@16,layers=0:k=1", "layers: at 16 bits every token is exact"},
      {"local@16", "policy local changes nothing"},
  };
  for (const auto& [text, part] : wrong) {
    const Status status = ParseCardArm(text).status();
    EXPECT_FALSE(status.ok()) << text;
    EXPECT_NE(status.message().find(part), std::string::npos) << text << ": " << status.message();
  }
  EXPECT_EQ(ParseCardArm("uniform@4,profile=/none/of.profile").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace qkvshare
