// Times to first token as a table and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "eval/ttft.h"

namespace qkvshare::cli {

// The lines of one depth.
void PrintTtft(std::span<const TtftLine> lines);
// The header's members, and "lines".
nlohmann::ordered_json TtftReportJson(const TtftReport& report);

}  // namespace qkvshare::cli
