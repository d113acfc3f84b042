#include "eval/pack_facts.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "base/hash.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

Json LayersJson(const std::vector<LayerAdjustment>& layers) {
  Json json = Json::array();
  for (const LayerAdjustment layer : layers) json.push_back({layer.keys, layer.values});
  return json;
}

}  // namespace

Json PackFacts(const PackOptions& options) {
  Json levels = Json::array();
  for (const Level level : options.levels) levels.push_back(LevelName(level));
  return {{"policy", PolicyName(options.policy)},
          {"control_of", PolicyName(options.control_of)},
          {"policy_seed", options.policy_seed},
          {"alpha", options.alpha},
          {"features", options.features.Names()},
          {"code_bits", options.code_bits},
          {"max_bytes", options.max_bytes},
          {"protected_tokens", options.protected_tokens},
          {"levels", levels},
          {"layers", LayersJson(options.layers)},
          {"profile", options.profile == nullptr ? "" : ToHex(options.profile->id)}};
}

}  // namespace qkvshare
