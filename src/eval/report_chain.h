// What a report says of files of `eval chain`: right answers by hop, with intervals, and arms against each other.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/chain_summary.h"
#include "eval/report_file.h"
#include "eval/report_section.h"
#include "eval/svg_plot.h"

namespace qkvshare {

// A section for each model. against: as in SummarizeChains; each section takes those that it has. Errors as
// ReadChainResults and SummarizeChains.
Result<std::vector<ReportSection>> ChainSections(std::span<const ReportFile> files,
                                                 std::span<const std::string> against);

// Share of right answers by hop, a line an arm.
Plot ChainPlot(const ChainSummary& summary);

}  // namespace qkvshare
