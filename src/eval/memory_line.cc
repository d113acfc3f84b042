// A line of a file of results, and back.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/memory.h"

namespace qkvshare {

nlohmann::ordered_json MemoryJson(const MemoryLine& line) {
  nlohmann::ordered_json json = {{"shape", line.shape},
                                 {"content", line.content},
                                 {line.shape == kHopShape ? "hop" : "agents", line.number},
                                 {"tokens", line.tokens},
                                 {"taken_bytes", line.taken_bytes},
                                 {"private_bytes", line.private_bytes},
                                 {"peak_private_bytes", line.peak_private_bytes},
                                 {"model_private_bytes", line.model_private_bytes},
                                 {"shared_bytes", line.shared_bytes},
                                 {"proportional_bytes", line.proportional_bytes}};
  if (line.shape == kHopShape) json["handed_bytes"] = line.handed_bytes;
  return json;
}

Result<MemoryLine> ParseMemory(const nlohmann::ordered_json& json) {
  MemoryLine line;
  try {
    json.at("shape").get_to(line.shape);
    json.at("content").get_to(line.content);
    json.at(line.shape == kHopShape ? "hop" : "agents").get_to(line.number);
    json.at("tokens").get_to(line.tokens);
    json.at("taken_bytes").get_to(line.taken_bytes);
    json.at("private_bytes").get_to(line.private_bytes);
    json.at("peak_private_bytes").get_to(line.peak_private_bytes);
    json.at("model_private_bytes").get_to(line.model_private_bytes);
    json.at("shared_bytes").get_to(line.shared_bytes);
    json.at("proportional_bytes").get_to(line.proportional_bytes);
    if (line.shape == kHopShape) json.at("handed_bytes").get_to(line.handed_bytes);
  } catch (const nlohmann::json::exception& e) {
    return Status(StatusCode::kCorrupt, e.what());
  }
  return line;
}

const MemoryLine* MemoryReport::Find(const std::string& shape, const std::string& content, size_t number) const {
  const auto found = std::find_if(lines.begin(), lines.end(), [&](const MemoryLine& line) {
    return line.shape == shape && line.content == content && line.number == number;
  });
  return found == lines.end() ? nullptr : &*found;
}

}  // namespace qkvshare
