#include "eval/chain_arm.h"

#include <gtest/gtest.h>

#include <string>

namespace qkvshare {
namespace {

ChainArm Parse(const std::string& text) {
  const Result<ChainArm> arm = ParseChainArm(text);
  EXPECT_TRUE(arm.has_value()) << arm.status().message();
  return arm ? *arm : ChainArm();
}

TEST(ChainArmTest, SaysWhatIsHandedOver) {
  const ChainArm f16 = Parse("f16");
  EXPECT_EQ(f16.hand_over, HandOver::kSequence);
  EXPECT_EQ(f16.keys, CacheType::kF16);
  EXPECT_EQ(Parse("text").hand_over, HandOver::kText);
  const ChainArm cache = Parse("cache:q8_0/q4_0");
  EXPECT_EQ(cache.hand_over, HandOver::kSequence);
  EXPECT_EQ(cache.keys, CacheType::kQ8_0);
  EXPECT_EQ(cache.values, CacheType::kQ4_0);
  const ChainArm card = Parse("topology@3.25,alpha=0.3");
  EXPECT_EQ(card.hand_over, HandOver::kCards);
  EXPECT_EQ(card.card.pack.policy, Policy::kTopology);
  EXPECT_EQ(card.card.pack.code_bits, 3.25);
  EXPECT_EQ(card.card.pack.alpha, 0.3);
  const ChainArm again = Parse("requantized@4,protect=8");
  EXPECT_EQ(again.hand_over, HandOver::kRepacked);
  EXPECT_EQ(again.card.pack.policy, Policy::kUniform);
  EXPECT_EQ(again.card.pack.code_bits, 4);
  EXPECT_EQ(again.card.pack.protected_tokens, 8U);
  EXPECT_EQ(Parse("requantized@16").card.pack.code_bits, 16);
}

TEST(ChainArmTest, HasOneNameHoweverItIsWrittenAndOneThatFilesTake) {
  EXPECT_EQ(Parse("uniform@4.0").name, "uniform@4");
  EXPECT_EQ(Parse("requantized@4.0").name, "requantized@4");
  EXPECT_EQ(Parse("requantized@16").name, "requantized@16");
  EXPECT_EQ(Parse("cache:q8_0").name, "cache:q8_0/q8_0");
  EXPECT_EQ(Parse("cache:q8_0").FileName(), "cache-q8_0-q8_0");
  EXPECT_EQ(Parse("uniform@3,levels=K4V2/K2V2").FileName(), "uniform@3,levels=K2V2-K4V2");
  EXPECT_EQ(Parse("f16").FileName(), "f16");
}

TEST(ChainArmTest, RefusesWhatDoesNotCountInAChain) {
  const auto expect_refused = [](const std::string& text, const std::string& part) {
    const Status status = ParseChainArm(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  expect_refused("floor", "eval fidelity only");
  expect_refused("roundtrip:q8_0/q8_0", "eval fidelity only");
  expect_refused("oracle@4", "use topology");
  expect_refused("uniform@4,inject=restore", "requantized");
  expect_refused("uniform,max_bytes=5000", "give bits");
  expect_refused("local@4,features=+confidence", "confidence is not known");
  expect_refused("topology@4,features=+anchors", "anchors is not known");
  expect_refused("requantized", "bits");
  expect_refused("requantized@1", "2 to 16");
  expect_refused("requantized@4,alpha=0.5", "alpha");
  expect_refused("best@4", "requantized@BITS");
  expect_refused("cache:q5_0", "q8_0");
}

TEST(ChainArmTest, IsAppliedToTheRequestAndProbesWherePoliciesCountIt) {
  const auto probes = [](const std::string& text) {
    HopRequest request;
    ApplyChainArm(Parse(text), &request);
    return request.probe;
  };
  EXPECT_TRUE(probes("topology@4"));
  EXPECT_TRUE(probes("random@4,control_of=topology"));
  EXPECT_FALSE(probes("topology@4,features=-probe"));
  EXPECT_FALSE(probes("random@4"));
  for (const char* text : {"uniform@4", "local@4", "f16", "text", "requantized@4", "cache:q8_0"})
    EXPECT_FALSE(probes(text)) << text;
  HopRequest request;
  ApplyChainArm(Parse("cache:q4_0/q8_0"), &request);
  EXPECT_EQ(request.session.cache_type_k, CacheType::kQ4_0);
  EXPECT_EQ(request.session.cache_type_v, CacheType::kQ8_0);
  // Another arm leaves nothing of the one before.
  ApplyChainArm(Parse("local@3"), &request);
  EXPECT_EQ(request.session.cache_type_k, CacheType::kF16);
  EXPECT_EQ(request.hand_over, HandOver::kCards);
  ASSERT_EQ(request.packs.size(), 1U);
  EXPECT_EQ(request.packs[0].code_bits, 3);
}

}  // namespace
}  // namespace qkvshare
