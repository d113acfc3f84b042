#include "eval/report_section.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "agents/html_text.h"

namespace qkvshare {

std::string HtmlTable(const TextTable& table) {
  std::string out = "<div class=\"wide\"><table>\n<thead><tr>";
  for (const std::string& head : table.heads) out += fmt::format("<th>{}</th>", HtmlText(head));
  out += "</tr></thead>\n<tbody>\n";
  for (const std::vector<std::string>& row : table.rows) {
    out += "<tr>";
    for (const std::string& cell : row) out += fmt::format("<td>{}</td>", HtmlText(cell));
    out += "</tr>\n";
  }
  out += "</tbody></table></div>\n";
  return table.note.empty() ? out : out + HtmlNote(table.note);
}

std::string FoldedTable(const TextTable& table) {
  return fmt::format("<details class=\"more\"><summary>{}</summary>\n{}</details>\n", HtmlText(table.title),
                     HtmlTable(table));
}

std::string HtmlNote(const std::string& text) { return fmt::format("<p class=\"note\">{}</p>\n", HtmlText(text)); }

void AddUnfinished(const FileGroup& group, const Planned& planned, ReportSection* section) {
  std::vector<std::string> texts;
  for (const ReportFile* file : group.files) {
    std::set<std::string> done;
    for (const auto& line : file->results.lines) done.insert(HeaderText(line, planned.member));
    const auto all = file->results.header.find(planned.planned);
    if (all == file->results.header.end() || !(all->is_array() || all->is_number_unsigned())) continue;
    const size_t count = all->is_array() ? all->size() : all->get<size_t>();
    if (done.size() < count)
      texts.push_back(fmt::format("{} has {} of {} {}", file->path, done.size(), count, planned.what));
  }
  if (texts.empty()) return;
  const std::string text = fmt::format("Unfinished: {}.", fmt::join(texts, "; "));
  section->html = HtmlNote(text) + section->html;
  section->markdown = text + "\n\n" + section->markdown;
}

void AddLeftOut(const ReportFile& file, ReportSection* section) {
  const auto left_out = file.results.header.find("left_out");
  if (left_out == file.results.header.end() || !left_out->is_object()) return;
  for (const auto& [way, why] : left_out->items()) {
    const std::string note = fmt::format("Without {}: {}", way, why.is_string() ? why.get<std::string>() : why.dump());
    section->html += HtmlNote(note);
    section->markdown += note + "\n\n";
  }
}

}  // namespace qkvshare
