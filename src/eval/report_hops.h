// What a report says of files of `eval hops`: KL by hop, a line an arm, and tables.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/fidelity_summary.h"
#include "eval/report_file.h"
#include "eval/report_section.h"
#include "eval/svg_plot.h"

namespace qkvshare {

// A section for each model. against: as in SummarizeHopKl; each section takes those that it has. Errors as GroupFiles,
// ParseFidelityLine (which line) and SummarizeHopKl.
Result<std::vector<ReportSection>> HopSections(std::span<const ReportFile> files, std::span<const std::string> against);

// Mean KL from the second hop on, as logarithm, with intervals; what is 0 is not drawn.
Plot HopKlPlot(const FidelitySummary& summary);

}  // namespace qkvshare
