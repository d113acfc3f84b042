// Which widths the tokens of a sample prompt got: a member of some lines of a fidelity file, and maps of a report.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "agents/turn_tokens.h"
#include "eval/report_file.h"
#include "qkvshare/status.h"
#include "quant/bit_plan.h"

namespace qkvshare {

// Tokens of a sample that are kept at most.
inline constexpr size_t kMapTokens = 2048;

// Levels in order as runs, "exact*4 K4V4*100 K4V2*3", and back. kCorrupt where it is none, or more than kMapTokens.
std::string LevelRuns(std::span<const Level> levels);
Result<std::vector<Level>> ParseLevelRuns(const std::string& text);

// {"levels": runs, "texts": [...], "segments": [[role, tokens], ...]} of the first kMapTokens tokens; texts that are
// not UTF-8 are replaced when written.
nlohmann::ordered_json TokenMapJson(const TurnTokens& tokens);
// kCorrupt where it is none.
Result<TurnTokens> ParseTokenMap(const nlohmann::ordered_json& json);

// HTML: a folded map for each arm of the group's files that has one and chose among widths; empty: there is none.
// kCorrupt: which line.
Result<std::string> TokenMaps(const FileGroup& group);

}  // namespace qkvshare
