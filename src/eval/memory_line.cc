// A line of a file of results, and back.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/amounts.h"
#include "eval/memory.h"

namespace qkvshare {
namespace {

int64_t Less(size_t bytes, size_t other) { return static_cast<int64_t>(bytes) - static_cast<int64_t>(other); }

const MemoryLine* LineOf(std::span<const MemoryLine> lines, const std::string& shape, const std::string& content,
                         size_t number) {
  const auto found = std::find_if(lines.begin(), lines.end(), [&](const MemoryLine& line) {
    return line.shape == shape && line.content == content && line.number == number;
  });
  return found == lines.end() ? nullptr : &*found;
}

}  // namespace

int64_t HeldOf(const MemoryLine& line) { return Less(line.private_bytes, line.model_private_bytes); }
int64_t PeakOf(const MemoryLine& line) { return Less(line.peak_private_bytes, line.model_private_bytes); }

std::optional<int64_t> ContextOf(std::span<const MemoryLine> lines, const MemoryLine& line) {
  const char* empty_name = MemoryContentName(MemoryContent::kEmpty);
  const MemoryLine* empty = LineOf(lines, line.shape, empty_name, line.number);
  if (empty == nullptr || line.content == empty_name) return std::nullopt;
  return HeldOf(line) - HeldOf(*empty);
}

std::string SignedBytes(int64_t bytes) {
  return (bytes < 0 ? "-" : "") + FormatBytes(static_cast<uint64_t>(bytes < 0 ? -bytes : bytes));
}

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
  return LineOf(lines, shape, content, number);
}

}  // namespace qkvshare
