// Memory of agents as tables and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "eval/memory.h"

namespace qkvshare::cli {

void PrintMemory(const std::string& model, const MemoryRequest& request, const MemoryReport& report);
// The header's members, and "lines".
nlohmann::ordered_json MemoryReportJson(const MemoryReport& report);

}  // namespace qkvshare::cli
