// A summary of chains for people and programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "eval/chain_summary.h"

namespace qkvshare {

// More truncated answers than this are said to be too many: what is measured then is the limit of tokens.
inline constexpr double kMostTruncated = 0.05;

std::string ChainText(const ChainSummary& summary);      // tables for a terminal
std::string ChainMarkdown(const ChainSummary& summary);  // the same as Markdown
nlohmann::ordered_json ChainJson(const ChainSummary& summary);

}  // namespace qkvshare
