// What a report says of files of `eval ttft`: times to first token by depth, and the stages that they consist of.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/report_file.h"
#include "eval/report_section.h"

namespace qkvshare {

// A section for each model and kind of card. Errors as GroupFiles and ParseTtft (which line).
Result<std::vector<ReportSection>> TtftSections(std::span<const ReportFile> files);

}  // namespace qkvshare
