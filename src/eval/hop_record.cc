#include "eval/hop_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace qkvshare {

std::string HopName(size_t hop) { return fmt::format("hop {}", hop + 1); }

nlohmann::ordered_json HopJson(const HopRecord& record) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::object();
  for (const auto& [name, us] : record.stages) stages[name] = us;
  return {{"chain", record.chain},
          {"hop", record.hop},
          {"stop", record.stop},
          {"text", record.text},
          {"taken_tokens", record.taken_tokens},
          {"read_tokens", record.read_tokens},
          {"tokens", record.tokens},
          {"end_token", record.end_token},
          {"card_tokens", record.card_tokens},
          {"card_bytes", record.card_bytes},
          {"code_bits", record.code_bits},
          {"total_bits", record.total_bits},
          {"stages_us", stages}};
}

Result<HopRecord> ParseHop(const nlohmann::ordered_json& json) {
  HopRecord record;
  try {
    json.at("chain").get_to(record.chain);
    json.at("hop").get_to(record.hop);
    json.at("stop").get_to(record.stop);
    json.at("text").get_to(record.text);
    json.at("taken_tokens").get_to(record.taken_tokens);
    json.at("read_tokens").get_to(record.read_tokens);
    json.at("tokens").get_to(record.tokens);
    json.at("end_token").get_to(record.end_token);
    json.at("card_tokens").get_to(record.card_tokens);
    json.at("card_bytes").get_to(record.card_bytes);
    json.at("code_bits").get_to(record.code_bits);
    json.at("total_bits").get_to(record.total_bits);
    for (const auto& [name, us] : json.at("stages_us").items()) record.stages.emplace_back(name, us.get<int64_t>());
  } catch (const nlohmann::json::exception& e) {
    return Status(StatusCode::kCorrupt, e.what());
  }
  return record;
}

}  // namespace qkvshare
