#include "eval/hop_kl_arm.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "eval/run_facts.h"

namespace qkvshare {
namespace {

constexpr const char *kOnce = "once", *kFloor = "floor";

Status InvalidArm(const std::string& text, const std::string& why) {
  return {StatusCode::kInvalidArgument, fmt::format("arm {}: {}", text, why)};
}

const char* WayName(HopKlWay way) {
  switch (way) {
    case HopKlWay::kChain: return "chain";
    case HopKlWay::kOnce: return kOnce;
    case HopKlWay::kFloor: return kFloor;
  }
  return "unknown";
}

bool IsOnce(const std::string& name) { return name.starts_with(fmt::format("{}@", kOnce)); }

}  // namespace

Result<HopKlArm> ParseHopKlArm(const std::string& text) {
  HopKlArm arm;
  if (text == kFloor) {
    arm.way = HopKlWay::kFloor;
    arm.arm.name = text;
    arm.arm.hand_over = HandOver::kSequence;
    return arm;
  }
  if (text == "f16") return InvalidArm(text, "is what all arms are compared with; floor is the same in other pieces");
  if (text == "text") return InvalidArm(text, "its tokens are others than those of the conversation");
  if (text.starts_with(kOnce)) {
    arm.way = HopKlWay::kOnce;
    QKV_ASSIGN_OR_RETURN(arm.arm, ParseUniformArm(text, kOnce, HandOver::kCards));
    return arm;
  }
  Result<ChainArm> chain = ParseChainArm(text);
  if (!chain) return Status(chain.status().code(), chain.status().message() + "; also once@BITS and floor");
  arm.arm = std::move(*chain);
  return arm;
}

Result<std::vector<HopKlArm>> ParseHopKlArms(std::span<const std::string> texts) {
  std::vector<HopKlArm> arms;
  std::set<std::string> names;
  for (const std::string& text : texts) {
    QKV_ASSIGN_OR_RETURN(HopKlArm arm, ParseHopKlArm(text));
    if (!names.insert(arm.arm.name).second) return InvalidArm(text, "it is there twice");
    arms.push_back(std::move(arm));
  }
  if (arms.empty()) return Status(StatusCode::kInvalidArgument, "there are no arms to compare");
  return arms;
}

std::vector<std::string> DefaultHopKlArms() {
  return {"once@4", "uniform@4", "topology@4", "requantized@4", "uniform@8", "floor"};
}

std::vector<std::string> HopKlReferences(std::span<const std::string> arms) {
  std::vector<std::string> references;
  std::copy_if(arms.begin(), arms.end(), std::back_inserter(references), IsOnce);
  if (references.empty() && !arms.empty()) references.push_back(arms.front());
  return references;
}

nlohmann::ordered_json HopKlArmJson(const HopKlArm& arm, const HopRequest& request) {
  nlohmann::ordered_json packs = nlohmann::ordered_json::array();
  for (size_t i = 0; Packs(request.hand_over) && i < request.packs.size(); ++i)
    packs.push_back(PackFacts(request.packs[i]));
  return {{"arm", arm.arm.name},
          {"way", WayName(arm.way)},
          {"hand_over", HandOverName(request.hand_over)},
          {"probe", request.probe},
          {"packs", packs},
          {"cache_type_k", CacheTypeName(request.session.cache_type_k)},
          {"cache_type_v", CacheTypeName(request.session.cache_type_v)},
          {"batch", request.session.batch}};
}

}  // namespace qkvshare
