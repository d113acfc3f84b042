#include "eval/run_facts.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "attend/attend_kernels.h"
#include "base/file.h"
#include "base/hash.h"
#include "card/format.h"
#include "policy/controller.h"
#include "qkvshare/version.h"
#include "runtime/backend.h"
#include "runtime/model_weights.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxProgramBytes = size_t{1} << 30;

std::string ProgramDigest() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  const Result<std::string> bytes = ReadText(path.string(), kMaxProgramBytes);
  if (!bytes) return "";
  return ToHex(Blake2b({reinterpret_cast<const uint8_t*>(bytes->data()), bytes->size()}));
}

Json LayersJson(const std::vector<LayerAdjustment>& layers) {
  Json json = Json::array();
  for (const LayerAdjustment layer : layers) json.push_back({layer.keys, layer.values});
  return json;
}

// All that every policy has.
Json PolicyFacts(const PackOptions& options) {
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
          {"rounding", KeyRoundingName(options.rounding)},
          {"levels", levels},
          {"layers", LayersJson(options.layers)},
          {"profile", options.profile == nullptr ? "" : ToHex(options.profile->id)}};
}

}  // namespace

Result<Json> SoftwareFacts() {
  QKV_ASSIGN_OR_RETURN(const AttendKernels* kernels, SelectAttendKernels());
  return Json{{"qkvshare", kVersionText},
              {"card_format", card_format::kVersion},
              {"kernels", kernels->name},
              {"llama_cpp", LlamaVersion()}};
}

Json ModelFacts(const Model& model) {
  return {
      {"model", model.name()}, {"model_fingerprint", ToHex(model.fingerprint())}, {"weights", DescribeWeights(model)}};
}

Json SessionFacts(const Session& session) {
  return {{"rope", ToHex(session.identity().rope)},
          {"cache_type_k", CacheTypeName(session.cache_type_k())},
          {"cache_type_v", CacheTypeName(session.cache_type_v())},
          {"flash_attention", session.flash_attention()},
          {"threads", session.threads()}};
}

Json PackFacts(const PackOptions& options) {
  Json facts = PolicyFacts(options);
  if (options.controller != nullptr) facts["controller"] = ToHex(options.controller->id());
  return facts;
}

Json ProducerFacts() {
  static const std::string digest = ProgramDigest();
  return {{"program", digest}, {"qkvshare", kVersionText}, {"llama_cpp_system", LlamaSystemInfo()}};
}

std::string TextDigest(const Model& model, const std::string& text) {
  const std::vector<int32_t> tokens = model.Tokenize(text, /*add_special=*/true);
  return ToHex(Blake2b({reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size() * sizeof(int32_t)}));
}

}  // namespace qkvshare
