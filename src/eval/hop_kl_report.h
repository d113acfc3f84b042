// A summary of `eval hops` for people: KL by arm and hop, and arms against each other in each hop.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/fidelity_summary.h"
#include "eval/text_table.h"
#include "qkvshare/status.h"

namespace qkvshare {

// The kinds of the summary's rows are hops. against: as in FidelitySummaryOptions; empty: HopKlReferences. Errors as
// SummarizeFidelity.
Result<FidelitySummary> SummarizeHopKl(std::span<const FidelityLine> lines, std::vector<std::string> against);

// Of one arm, hop by hop.
struct HopKlRow {
  std::string arm;
  std::vector<const FidelityRow*> hops;  // as many as the summary has kinds; of the summary, which must outlive it
};
std::vector<HopKlRow> HopKlRows(const FidelitySummary& summary);

// Mean KL by hop, the same top token by hop, and a table for each arm that others are compared with: the ratio of mean
// KL from the second hop on. The first has the note.
std::vector<TextTable> HopKlTables(const FidelitySummary& summary);
std::string HopKlText(const FidelitySummary& summary);  // for a terminal

}  // namespace qkvshare
