// A line of a file of results, and back.
#include <nlohmann/json.hpp>

#include "eval/ttft.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

Json SpreadJson(const Spread& spread) {
  return {{"median_us", spread.median_us}, {"least_us", spread.least_us}, {"most_us", spread.most_us}};
}

Spread ParseSpread(const Json& json) {
  return {json.at("median_us").get<int64_t>(), json.at("least_us").get<int64_t>(), json.at("most_us").get<int64_t>()};
}

}  // namespace

Json TtftJson(const TtftLine& line) {
  Json stages = Json::object();
  for (const StageSpread& stage : line.stages) stages[stage.name] = SpreadJson(stage.time);
  Json json = {{"depth", line.depth},
               {"way", line.way},
               {"runs", line.runs},
               {"bytes", line.bytes},
               {"total", SpreadJson(line.total)},
               {"stages", stages}};
  if (line.speedup > 0) json["speedup"] = line.speedup;
  if (line.write) json["write"] = SpreadJson(*line.write);
  if (line.first_token >= 0) json["first_token"] = line.first_token;
  if (line.code_bits > 0) {
    json["code_bits"] = line.code_bits;
    json["total_bits"] = line.total_bits;
  }
  return json;
}

Result<TtftLine> ParseTtft(const Json& json) {
  TtftLine line;
  try {
    json.at("depth").get_to(line.depth);
    json.at("way").get_to(line.way);
    json.at("runs").get_to(line.runs);
    json.at("bytes").get_to(line.bytes);
    line.total = ParseSpread(json.at("total"));
    for (const auto& [name, time] : json.at("stages").items()) line.stages.push_back({name, ParseSpread(time)});
    line.speedup = json.value("speedup", 0.0);
    if (json.contains("write")) line.write = ParseSpread(json["write"]);
    line.first_token = json.value("first_token", -1);
    line.code_bits = json.value("code_bits", 0.0);
    line.total_bits = json.value("total_bits", 0.0);
  } catch (const nlohmann::json::exception& e) {
    return Status(StatusCode::kCorrupt, e.what());
  }
  return line;
}

}  // namespace qkvshare
