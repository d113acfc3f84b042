#include "eval/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "agents/html_text.h"
#include "agents/run_page_style.h"
#include "base/hash.h"
#include "eval/fidelity_run.h"
#include "eval/hop_header.h"
#include "eval/hop_kl_run.h"
#include "eval/memory.h"
#include "eval/model_title.h"
#include "eval/report_chain.h"
#include "eval/report_fidelity.h"
#include "eval/report_file.h"
#include "eval/report_hops.h"
#include "eval/report_memory.h"
#include "eval/report_style.h"
#include "eval/report_ttft.h"
#include "eval/ttft.h"
#include "qkvshare/version.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDigestCharacters = 12;

std::string KindName(const std::string& kind) {
  if (kind == kFidelityKind) return "fidelity";
  if (kind == kHopKind) return "chain";
  if (kind == kHopKlKind) return "hops";
  return kind == kTtftKind ? "ttft" : "memory";
}

// With its folder, which tells runs apart; not where that is.
std::string ShortPath(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::string folder = whole.parent_path().filename().string(), name = whole.filename().string();
  return folder.empty() ? name : folder + "/" + name;
}

std::string ProgramsOf(const Results& results) {
  std::vector<std::string> programs;
  for (const Json& producer : results.producers) {
    const std::string program = HeaderText(producer, "program").substr(0, kDigestCharacters);
    const std::string text = fmt::format("{} {}", HeaderText(producer, "qkvshare"), program);
    if (std::find(programs.begin(), programs.end(), text) == programs.end()) programs.push_back(text);
  }
  std::set<std::string> systems;
  for (const Json& producer : results.producers) systems.insert(HeaderText(producer, "llama_cpp_system"));
  return fmt::format("{}{}", fmt::join(programs, ", "),
                     systems.size() > 1 ? fmt::format("; on {} kinds of CPU", systems.size()) : "");
}

// Its short name, if it has one, and its own.
std::string ModelText(const Json& header) {
  const std::string title = ModelTitle(header), name = HeaderText(header, "model");
  return title == name ? name : fmt::format("{} ({})", title, name);
}

TextTable SourcesTable(const std::vector<ReportFile>& files) {
  TextTable table;
  table.title = "Files";
  table.heads = {"file", "of eval", "model", "results", "card format", "llama.cpp", "kernels", "threads", "written by"};
  for (const ReportFile& file : files) {
    const Json& header = file.results.header;
    const auto text = [&](const char* member) { return HeaderText(header, member); };
    table.rows.push_back({ShortPath(file.path), KindName(file.kind), ModelText(header),
                          fmt::format("{}", file.results.lines.size()), text("card_format"), text("llama_cpp"),
                          text("kernels"), text("threads"), ProgramsOf(file.results)});
  }
  table.note = "Written by: version and program (the start of its digest); kinds of CPU by the instructions they have.";
  return table;
}

// A digest by its start, a list of arms by their names, else as it stands.
std::string ValueText(const Json& value) {
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    return text.size() == 2 * sizeof(Digest) ? text.substr(0, kDigestCharacters) : text;
  }
  const bool arms = value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& item) {
                      return item.is_object() && item.contains("arm");
                    });
  if (!arms) return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  std::string names;
  for (const Json& item : value) names += fmt::format("{}{}", names.empty() ? "" : " ", HeaderText(item, "arm"));
  return names;
}

// All that the results follow from, on one line.
std::string FactsText(const Json& header) {
  std::string text;
  for (const auto& [key, value] : header.items())
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", key, ValueText(value));
  return text;
}

ReportSection SourcesSection(const std::vector<ReportFile>& files) {
  const TextTable table = SourcesTable(files);
  ReportSection section;
  section.title = "What it is made of";
  section.html = HtmlTable(table);
  section.markdown = MarkdownTable(table) + "\n";
  for (const ReportFile& file : files) {
    section.markdown += fmt::format("- `{}`: {}\n", ShortPath(file.path), FactsText(file.results.header));
    section.html += fmt::format(
        "<details class=\"more\"><summary>{}: all that its results follow from</summary>\n<pre>{}</pre></details>\n",
        HtmlText(ShortPath(file.path)),
        HtmlText(file.results.header.dump(2, ' ', false, Json::error_handler_t::replace)));
  }
  return section;
}

std::string Page(const std::string& title, const std::vector<ReportSection>& sections) {
  std::string navigation, body;
  for (size_t i = 0; i < sections.size(); ++i) {
    const std::string name = HtmlText(sections[i].title);
    navigation += fmt::format("<a href=\"#part-{}\">{}</a>", i, name);
    body += fmt::format("<section id=\"part-{}\">\n<h2>{}</h2>\n{}</section>\n", i, name, sections[i].html);
  }
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<meta "
      "name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>{0}</title>\n<style>{1}{2}</style>\n</head>\n<body>\n<header>\n<h1>{0}</"
      "h1>\n<nav>{3}</nav>\n</header>\n{4}<footer>Written "
      "by qkvshare report {5}. Intervals are of 95%.</footer>\n</body>\n</html>\n",
      HtmlText(title), kRunPageStyle, kReportStyle, navigation, body, kVersionText);
}

std::string Markdown(const std::string& title, const std::vector<ReportSection>& sections) {
  std::string text = fmt::format("# {}\n\nWritten by `qkvshare report`. Intervals are of 95%.\n", title);
  for (const ReportSection& section : sections) text += fmt::format("\n## {}\n\n{}", section.title, section.markdown);
  return text;
}

// An arm that is in no file would be passed over in silence.
Status CheckAgainst(const ReportRequest& request, const std::vector<ReportFile>& files) {
  for (const std::string& arm : request.against) {
    const auto has = [&](const ReportFile& file) {
      const std::vector<Json>& lines = file.results.lines;
      return HeaderText(file.results.header, "arm") == arm ||
             std::any_of(lines.begin(), lines.end(), [&](const Json& line) { return HeaderText(line, "arm") == arm; });
    };
    if (std::none_of(files.begin(), files.end(), has))
      return {StatusCode::kInvalidArgument, fmt::format("no file has an arm '{}' to compare with", arm)};
  }
  return {};
}

void Move(std::vector<ReportSection>* more, std::vector<ReportSection>* sections) {
  std::move(more->begin(), more->end(), std::back_inserter(*sections));
}

}  // namespace

Result<Report> MakeReport(const ReportRequest& request) {
  const std::vector<std::string> kinds = {kFidelityKind, kHopKind, kHopKlKind, kTtftKind, kMemoryKind};
  QKV_ASSIGN_OR_RETURN(const std::vector<ReportFile> files, ReadReportFiles(request.files, kinds));
  QKV_RETURN_IF_ERROR(CheckAgainst(request, files));
  std::vector<ReportSection> sections;
  QKV_ASSIGN_OR_RETURN(std::vector<ReportSection> fidelity, FidelitySections(files, request.against));
  Move(&fidelity, &sections);
  QKV_ASSIGN_OR_RETURN(std::vector<ReportSection> chains, ChainSections(files, request.against));
  Move(&chains, &sections);
  QKV_ASSIGN_OR_RETURN(std::vector<ReportSection> hops, HopSections(files, request.against));
  Move(&hops, &sections);
  QKV_ASSIGN_OR_RETURN(std::vector<ReportSection> ttft, TtftSections(files));
  Move(&ttft, &sections);
  QKV_ASSIGN_OR_RETURN(std::vector<ReportSection> memory, MemorySections(files));
  Move(&memory, &sections);
  sections.push_back(SourcesSection(files));
  return Report{Page(request.title, sections), Markdown(request.title, sections)};
}

}  // namespace qkvshare
