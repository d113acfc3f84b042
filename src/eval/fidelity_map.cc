#include "eval/fidelity_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "agents/run_page_maps.h"
#include "agents/run_record.h"
#include "base/text.h"
#include "runtime/pack_text.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

Status Corrupt(std::string what) { return {StatusCode::kCorrupt, std::move(what)}; }

// Whether a policy had a choice: of widths besides exact.
bool HasChoice(std::span<const Level> levels) {
  const Level* first = nullptr;
  for (const Level& level : levels) {
    if (level == kExactLevel) continue;
    if (first != nullptr && level != *first) return true;
    first = &level;
  }
  return false;
}

TurnRecord RecordOf(const Json& line) {
  TurnRecord record;
  record.turn = HeaderText(line, "arm");
  record.card.path = fmt::format("{}, {}", HeaderText(line, "prompt"), HeaderText(line, "continuation"));
  const auto bits = line.find("code_bits"), features = line.find("features");
  if (bits != line.end() && bits->is_number()) record.code_bits = bits->get<double>();
  if (features == line.end() || !features->is_array()) return record;
  for (const Json& feature : *features) {
    if (feature.is_string()) record.features.push_back(feature.get<std::string>());
  }
  return record;
}

}  // namespace

std::string LevelRuns(std::span<const Level> levels) {
  std::string text;
  for (size_t first = 0; first < levels.size();) {
    size_t end = first;
    while (end < levels.size() && levels[end] == levels[first]) ++end;
    text += fmt::format("{}{}*{}", text.empty() ? "" : " ", LevelName(levels[first]), end - first);
    first = end;
  }
  return text;
}

Result<std::vector<Level>> ParseLevelRuns(const std::string& text) {
  std::vector<Level> levels;
  for (const std::string& run : Split(text, ' ')) {
    const size_t star = std::min(run.find('*'), run.size());
    const Result<std::vector<Level>> level = ParseLevels(run.substr(0, star));
    const std::string number = run.substr(std::min(star + 1, run.size()));
    size_t count = 0;
    const char* const end = number.data() + number.size();
    const bool whole = std::from_chars(number.data(), end, count).ptr == end;
    if (!whole || !level || level->size() != 1 || count == 0 || count > kMapTokens - levels.size())
      return Corrupt(fmt::format("'{}' is no run of a level", run));
    levels.insert(levels.end(), count, level->front());
  }
  return levels;
}

Json TokenMapJson(const TurnTokens& tokens) {
  const size_t count = std::min({tokens.levels.size(), tokens.texts.size(), kMapTokens});
  Json segments = Json::array();
  for (const TurnTokens::Segment& segment : tokens.segments) segments.push_back({segment.role, segment.tokens});
  return {{"levels", LevelRuns(std::span(tokens.levels).first(count))},
          {"texts", std::vector(tokens.texts.begin(), tokens.texts.begin() + static_cast<ptrdiff_t>(count))},
          {"segments", segments}};
}

Result<TurnTokens> ParseTokenMap(const Json& json) {
  TurnTokens tokens;
  try {
    QKV_ASSIGN_OR_RETURN(tokens.levels, ParseLevelRuns(json.at("levels").get<std::string>()));
    json.at("texts").get_to(tokens.texts);
    for (const Json& segment : json.at("segments"))
      tokens.segments.push_back({segment.at(0).get<std::string>(), segment.at(1).get<uint32_t>()});
  } catch (const nlohmann::json::exception& e) {
    return Corrupt(e.what());
  }
  if (tokens.texts.size() != tokens.levels.size()) return Corrupt("a map has not one level for each token");
  return tokens;
}

Result<std::string> TokenMaps(const FileGroup& group) {
  RunRecord run;
  std::vector<TurnTokens> maps;
  for (const ReportFile* file : group.files) {
    for (size_t i = 0; i < file->results.lines.size(); ++i) {
      const Json& line = file->results.lines[i];
      const auto map = line.find("map");
      if (map == line.end()) continue;
      Result<TurnTokens> tokens = ParseTokenMap(*map);
      if (!tokens) {
        return Status(tokens.status().code(),
                      fmt::format("{}: result {}: {}", file->path, i + 1, tokens.status().message()));
      }
      if (!HasChoice(tokens->levels)) continue;
      run.turns.push_back(RecordOf(line));
      maps.push_back(std::move(*tokens));
    }
  }
  return maps.empty() ? "" : BitMaps(run, maps, maps.size(), "The tokens of one context");
}

}  // namespace qkvshare
