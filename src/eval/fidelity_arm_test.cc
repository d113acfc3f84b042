#include "eval/fidelity_arm.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace qkvshare {
namespace {

FidelityArm Parse(const std::string& text) {
  const Result<FidelityArm> arm = ParseFidelityArm(text);
  EXPECT_TRUE(arm) << arm.status().message();
  return arm ? *arm : FidelityArm();
}

TEST(FidelityArm, IsACardOrACacheOrTheFloor) {
  const FidelityArm card = Parse("uniform@4.00,inject=restore");
  EXPECT_EQ(card.way, FidelityWay::kCard);
  EXPECT_EQ(card.name, "uniform@4,inject=restore");
  EXPECT_EQ(card.card.pack.code_bits, 4);
  EXPECT_EQ(Parse("exact").way, FidelityWay::kCard);
  const FidelityArm trip = Parse("roundtrip:q8_0/q4_0");
  EXPECT_EQ(trip.way, FidelityWay::kRoundTrip);
  EXPECT_EQ(trip.name, "roundtrip:q8_0/q4_0");
  EXPECT_EQ(trip.keys, CacheType::kQ8_0);
  EXPECT_EQ(trip.values, CacheType::kQ4_0);
  const FidelityArm cache = Parse("cache:q4_0");
  EXPECT_EQ(cache.way, FidelityWay::kCache);
  EXPECT_EQ(cache.name, "cache:q4_0/q4_0");
  EXPECT_EQ(Parse("floor").way, FidelityWay::kFloor);
  EXPECT_EQ(FidelityArmJson(trip)["keys"], "q8_0");
  EXPECT_EQ(FidelityArmJson(card)["code_bits"], 4);
}

TEST(FidelityArm, RefusesOthers) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"cache:q8_0/q4_0/q4_0", "as cache:q8_0/q4_0"}, {"cache:", "unknown cache type"},
      {"roundtrip:q5_0", "choose from f16, bf16"},    {"roundtrip", "unknown policy"},
      {"floor,piece=1", "floor takes no options"},    {"ceiling", "unknown policy 'ceiling'"},
  };
  for (const auto& [text, part] : wrong) {
    const Status status = ParseFidelityArm(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST(FidelityArm, ManyAreDistinct) {
  const Result<std::vector<FidelityArm>> usual = ParseFidelityArms(DefaultFidelityArms());
  ASSERT_TRUE(usual) << usual.status().message();
  ASSERT_EQ(usual->size(), DefaultFidelityArms().size());
  for (size_t i = 0; i < usual->size(); ++i) EXPECT_EQ((*usual)[i].name, DefaultFidelityArms()[i]);
  const std::vector<std::string> twice = {"local@4", "exact", "local@4.0"};
  EXPECT_NE(ParseFidelityArms(twice).status().message().find("there twice"), std::string::npos);
  EXPECT_EQ(ParseFidelityArms({}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace qkvshare
