// A case, and its result, as a process is told it and says it.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "eval/memory_case.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<MemoryContent, 3> kContents = {MemoryContent::kEmpty, MemoryContent::kF16, MemoryContent::kCards};

Result<MemoryContent> ContentFromName(const std::string& name) {
  const auto* const found = std::find_if(kContents.begin(), kContents.end(),
                                         [&](MemoryContent content) { return name == MemoryContentName(content); });
  if (found != kContents.end()) return *found;
  return Status(StatusCode::kCorrupt, "there is no content named " + name);
}

}  // namespace

Json MemoryCaseJson(const MemoryCase& memory_case) {
  const SessionOptions& session = memory_case.session;
  return {{"model", memory_case.model},
          {"content", MemoryContentName(memory_case.content)},
          {"agents", memory_case.agents},
          {"one_context", memory_case.one_context},
          {"depth", memory_case.depth},
          {"state", memory_case.state},
          {"cards", memory_case.cards},
          {"tokens", memory_case.tokens},
          {"output", memory_case.output},
          {"code_bits", memory_case.code_bits},
          {"threads", session.threads},
          {"batch", session.batch},
          {"rope_freq_base", session.rope_freq_base},
          {"rope_freq_scale", session.rope_freq_scale}};
}

Result<MemoryCase> ParseMemoryCase(const Json& json) {
  MemoryCase memory_case;
  try {
    QKV_ASSIGN_OR_RETURN(memory_case.content, ContentFromName(json.at("content").get<std::string>()));
    json.at("model").get_to(memory_case.model);
    json.at("agents").get_to(memory_case.agents);
    json.at("one_context").get_to(memory_case.one_context);
    json.at("depth").get_to(memory_case.depth);
    json.at("state").get_to(memory_case.state);
    json.at("cards").get_to(memory_case.cards);
    json.at("tokens").get_to(memory_case.tokens);
    json.at("output").get_to(memory_case.output);
    json.at("code_bits").get_to(memory_case.code_bits);
    json.at("threads").get_to(memory_case.session.threads);
    json.at("batch").get_to(memory_case.session.batch);
    json.at("rope_freq_base").get_to(memory_case.session.rope_freq_base);
    json.at("rope_freq_scale").get_to(memory_case.session.rope_freq_scale);
  } catch (const nlohmann::json::exception& e) {
    return Status(StatusCode::kCorrupt, e.what());
  }
  return memory_case;
}

Json MemoryCaseResultJson(const MemoryCaseResult& result) {
  return {{"model_private_bytes", result.model_private_bytes}, {"private_bytes", result.held.private_bytes},
          {"shared_bytes", result.held.shared_bytes},          {"proportional_bytes", result.held.proportional_bytes},
          {"peak_private_bytes", result.peak_private_bytes},   {"output_bytes", result.output_bytes}};
}

Result<MemoryCaseResult> ParseMemoryCaseResult(const Json& json) {
  MemoryCaseResult result;
  try {
    json.at("model_private_bytes").get_to(result.model_private_bytes);
    json.at("private_bytes").get_to(result.held.private_bytes);
    json.at("shared_bytes").get_to(result.held.shared_bytes);
    json.at("proportional_bytes").get_to(result.held.proportional_bytes);
    json.at("peak_private_bytes").get_to(result.peak_private_bytes);
    json.at("output_bytes").get_to(result.output_bytes);
  } catch (const nlohmann::json::exception& e) {
    return Status(StatusCode::kCorrupt, e.what());
  }
  return result;
}

}  // namespace qkvshare
