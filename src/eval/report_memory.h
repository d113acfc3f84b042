// What a report says of files of `eval memory`: memory by number of agents and by hop.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/report_file.h"
#include "eval/report_section.h"

namespace qkvshare {

// A section for each model, context and bits. Errors as GroupFiles and ParseMemory (which line).
Result<std::vector<ReportSection>> MemorySections(std::span<const ReportFile> files);

}  // namespace qkvshare
