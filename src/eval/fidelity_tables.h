// A summary of fidelity as tables: of all kinds of continuations, and of each kind where there are several, one of the
// arms and one of all arms against each that they are compared with. The first has the note.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "eval/fidelity_summary.h"
#include "eval/text_table.h"

namespace qkvshare {

// With fewer prompts an interval would say more than it knows.
inline constexpr size_t kFewestPrompts = 5;
// The interval, without its ends where they are of too few prompts.
Interval Shown(Interval interval, size_t prompts);
// For a table's note: that there are too few; empty where there are enough.
std::string TooFewText(size_t prompts, const std::string& what);

// "0.00123 [0.00110, 0.00140]"; without the interval where it is not known, "-" where there is no value.
std::string IntervalText(const Interval& interval, int decimals, const char* unit = "");

std::vector<TextTable> FidelityTables(const FidelitySummary& summary);

std::string FidelityText(const FidelitySummary& summary);      // for a terminal
std::string FidelityMarkdown(const FidelitySummary& summary);  // headings of level 3

}  // namespace qkvshare
