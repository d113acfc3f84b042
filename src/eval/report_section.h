// A part of a report, as it is written twice: as HTML for the page, and as Markdown.
#pragma once

#include <string>
#include <vector>

#include "eval/report_file.h"
#include "eval/text_table.h"

namespace qkvshare {

struct ReportSection {
  std::string title;
  std::string html, markdown;  // without the title
};

// Without the title.
std::string HtmlTable(const TextTable& table);
// Folded, under its title.
std::string FoldedTable(const TextTable& table);
// Says which ways the file's header has as left out, with the reason of each.
void AddLeftOut(const ReportFile& file, ReportSection* section);
// What the files of a group have a line or several of, and are to have so many of in the end.
struct Planned {
  const char* member;   // of lines
  const char* planned;  // of the header: their number, or a list of them
  const char* what;     // as people call them
};
// Says first which files of the group have not come to their end.
void AddUnfinished(const FileGroup& group, const Planned& planned, ReportSection* section);
std::string HtmlNote(const std::string& text);

}  // namespace qkvshare
