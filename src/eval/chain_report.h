// A summary of chains for people and programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/chain_summary.h"
#include "eval/text_table.h"

namespace qkvshare {

// More truncated answers than this are said to be too many: what is measured then is the limit of tokens.
inline constexpr double kMostTruncated = 0.05;

// Right answers by arm and hop; then, for each arm that others are compared with, wins and losses against it.
std::vector<TextTable> ChainTables(const ChainSummary& summary);
std::string ChainText(const ChainSummary& summary);      // for a terminal
std::string ChainMarkdown(const ChainSummary& summary);  // headings of level 3
nlohmann::ordered_json ChainJson(const ChainSummary& summary);

}  // namespace qkvshare
