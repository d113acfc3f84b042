#include "eval/fidelity_arm.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"

namespace qkvshare {
namespace {

constexpr const char* kFloor = "floor";

Status InvalidArm(const std::string& text, const std::string& why) {
  return {StatusCode::kInvalidArgument, fmt::format("arm {}: {}", text, why)};
}

// way: its name before the colon.
Result<FidelityArm> ParseTypes(const std::string& text, const std::string& name, FidelityWay way) {
  std::vector<std::string> types = Split(text.substr(name.size() + 1), '/');
  if (types.size() == 1) types.push_back(types.front());
  if (types.size() != 2) return InvalidArm(text, fmt::format("give types of keys and values, as {}:q8_0/q4_0", name));
  FidelityArm arm;
  arm.way = way;
  for (const auto& [type, to] : {std::pair{types[0], &arm.keys}, std::pair{types[1], &arm.values}}) {
    const Result<CacheType> known = CacheTypeFromName(type);
    if (!known) return InvalidArm(text, known.status().message());
    *to = *known;
  }
  arm.name = fmt::format("{}:{}/{}", name, CacheTypeName(arm.keys), CacheTypeName(arm.values));
  return arm;
}

}  // namespace

Result<FidelityArm> ParseFidelityArm(const std::string& text) {
  for (const auto& [name, way] :
       {std::pair{"roundtrip", FidelityWay::kRoundTrip}, std::pair{"cache", FidelityWay::kCache}}) {
    if (text.starts_with(fmt::format("{}:", name))) return ParseTypes(text, name, way);
  }
  FidelityArm arm;
  arm.name = text;
  arm.way = FidelityWay::kFloor;
  if (text == kFloor) return arm;
  if (text.starts_with(kFloor)) return InvalidArm(text, "floor takes no options");
  QKV_ASSIGN_OR_RETURN(arm.card, ParseCardArm(text));
  arm.way = FidelityWay::kCard;
  arm.name = arm.card.name;
  return arm;
}

Result<std::vector<FidelityArm>> ParseFidelityArms(std::span<const std::string> texts) {
  std::vector<FidelityArm> arms;
  for (const std::string& text : texts) {
    QKV_ASSIGN_OR_RETURN(FidelityArm arm, ParseFidelityArm(text));
    const bool known = std::any_of(arms.begin(), arms.end(), [&](const FidelityArm& a) { return a.name == arm.name; });
    if (known) return InvalidArm(text, "it is there twice");
    arms.push_back(std::move(arm));
  }
  if (arms.empty()) return Status(StatusCode::kInvalidArgument, "there are no arms to compare");
  return arms;
}

std::vector<std::string> DefaultFidelityArms() {
  return {"uniform@4",
          "local@4",
          "topology@4",
          "random@4",
          "exact",
          "roundtrip:q8_0/q8_0",
          "roundtrip:q8_0/q4_0",
          "roundtrip:q4_0/q4_0",
          "cache:q8_0/q8_0",
          "cache:q8_0/q4_0",
          "cache:q4_0/q4_0",
          "floor"};
}

nlohmann::ordered_json FidelityArmJson(const FidelityArm& arm) {
  switch (arm.way) {
    case FidelityWay::kCard: return CardArmJson(arm.card);
    case FidelityWay::kFloor: return {{"arm", arm.name}};
    case FidelityWay::kRoundTrip:
    case FidelityWay::kCache: break;
  }
  return {{"arm", arm.name}, {"keys", CacheTypeName(arm.keys)}, {"values", CacheTypeName(arm.values)}};
}

}  // namespace qkvshare
