// What a report says of files of `eval fidelity`: KL against bits with the Pareto front, and tables.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/fidelity_summary.h"
#include "eval/report_file.h"
#include "eval/report_section.h"
#include "eval/svg_plot.h"

namespace qkvshare {

// A section for each model, set of prompts and size of context. against: as in FidelitySummaryOptions; each section
// takes those that it has. Errors as GroupFiles, ParseFidelityLine (which line) and SummarizeFidelity.
Result<std::vector<ReportSection>> FidelitySections(std::span<const ReportFile> files,
                                                    std::span<const std::string> against);

// Of rows of all kinds: those that no other row has both fewer bits and less KL than, from few bits to many. The noise
// floor and what knows the receiver beforehand (the oracle) do not count.
std::vector<const FidelityRow*> ParetoFront(std::span<const FidelityRow> rows);

// The lines of all files. Errors as ParseFidelityLine (which line).
Result<std::vector<FidelityLine>> FidelityLinesOf(const FileGroup& group);

// Of mean KL, as logarithm: for all rows with their intervals. What is 0 has no place on it.
PlotAxis KlAxis(std::span<const FidelityRow> rows);

// Mean KL against all bits, both as logarithms; the noise floor as a line.
Plot FidelityPlot(std::span<const FidelityRow> rows);

}  // namespace qkvshare
