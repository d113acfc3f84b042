#include "eval/report_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/amounts.h"
#include "eval/memory.h"
#include "eval/model_title.h"
#include "eval/svg_plot.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMega = 1e6;

std::string TitleOf(const Json& header) {
  const std::string model = ModelTitle(header), depth = HeaderText(header, "depth");
  if (model.empty() || depth.empty()) return "";
  return fmt::format("{}, {} tokens, cards of {} bits", model, depth, HeaderText(header, "bits"));
}

// The lines of hops, or all others.
std::vector<MemoryLine> Of(const std::vector<MemoryLine>& lines, bool hops) {
  std::vector<MemoryLine> some;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(some),
               [hops](const MemoryLine& line) { return (line.shape == kHopShape) == hops; });
  return some;
}

Plot PlotOf(const std::vector<MemoryLine>& lines, const char* x_title) {
  Plot plot;
  plot.label = fmt::format("Peak private memory beside the weights, by {}", x_title);
  plot.x.title = x_title;
  plot.y.title = "peak private memory, MB";
  std::set<size_t> numbers = {0};
  double most = 1;
  for (const MemoryLine& line : lines) {
    const std::string name = line.shape == kHopShape ? line.content : fmt::format("{}, {}", line.content, line.shape);
    auto series =
        std::find_if(plot.series.begin(), plot.series.end(), [&](const PlotSeries& s) { return s.name == name; });
    if (series == plot.series.end()) series = plot.series.insert(series, {name, {}, true, false});
    const double megabytes = std::max(static_cast<double>(PeakOf(line)) / kMega, 0.0);
    PlotPoint point;
    point.x = static_cast<double>(line.number);
    point.y = megabytes;
    point.title = fmt::format("{}: {} {}, {}", name, line.number, x_title, SignedBytes(PeakOf(line)));
    series->points.push_back(std::move(point));
    numbers.insert(line.number);
    most = std::max(most, megabytes);
  }
  for (const size_t number : numbers) {
    plot.x.ticks.push_back(static_cast<double>(number));
    plot.x.tick_texts.push_back(number == 0 ? "" : fmt::format("{}", number));
  }
  plot.y.ticks = LinearTicks(most);
  for (const double tick : plot.y.ticks) plot.y.tick_texts.push_back(fmt::format("{:g}", tick));
  return plot;
}

TextTable AgentsTable(const std::vector<MemoryLine>& lines) {
  TextTable table;
  table.title = "Agents that share a context";
  table.heads = {"has", "shape", "agents", "peak", "held", "context", "files", "taken"};
  for (const MemoryLine& line : lines) {
    const std::optional<int64_t> context = ContextOf(lines, line);
    table.rows.push_back({line.content, line.shape, fmt::format("{}", line.number), SignedBytes(PeakOf(line)),
                          SignedBytes(HeldOf(line)), context ? SignedBytes(*context) : "-",
                          FormatBytes(line.shared_bytes), FormatBytes(line.taken_bytes)});
  }
  table.note =
      "Peak, held: private memory of all agents beside the weights, at most and in the end; context: of held, what is "
      "more than empty of the same shape has; files: weights and cards in memory, once for all; taken: the file that "
      "every agent takes the context from.";
  return table;
}

TextTable HopsTable(const std::vector<MemoryLine>& lines) {
  TextTable table;
  table.title = "Hops of a chain";
  table.heads = {"has", "hop", "tokens", "peak", "held", "taken", "handed on"};
  for (const MemoryLine& line : lines) {
    table.rows.push_back({line.content, fmt::format("{}", line.number), fmt::format("{}", line.tokens),
                          SignedBytes(PeakOf(line)), SignedBytes(HeldOf(line)), FormatBytes(line.taken_bytes),
                          FormatBytes(line.handed_bytes)});
  }
  table.note = "Taken: files with all that came before; handed on: a card of the hop's own tokens, or a whole state.";
  return table;
}

ReportSection SectionOf(const std::string& title, const std::vector<MemoryLine>& lines) {
  ReportSection section;
  section.title = "Memory: " + title;
  const auto add = [&](const std::vector<MemoryLine>& some, const char* x_title,
                       TextTable (*make)(const std::vector<MemoryLine>&)) {
    if (some.empty()) return;
    const TextTable table = make(some);
    const Plot plot = PlotOf(some, x_title);
    section.html += fmt::format("<h3>{}</h3>\n", table.title) + PlotKey(plot) + PlotSvg(plot) + HtmlTable(table);
    section.markdown += MarkdownTable(table) + "\n";
  };
  add(Of(lines, false), "agents", AgentsTable);
  add(Of(lines, true), "hop", HopsTable);
  return section;
}

Result<std::vector<MemoryLine>> LinesOf(const FileGroup& group) {
  std::vector<MemoryLine> lines;
  for (const ReportFile* file : group.files) {
    QKV_ASSIGN_OR_RETURN(const std::vector<MemoryLine> more, ParseLines(*file, ParseMemory));
    for (const MemoryLine& line : more) {
      const bool there = std::any_of(lines.begin(), lines.end(), [&](const MemoryLine& other) {
        return other.shape == line.shape && other.content == line.content && other.number == line.number;
      });
      if (there) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("{}: {}, {} {} is in another file too; give one of them", file->path, line.content,
                                  line.shape == kHopShape ? "hop" : line.shape + ", agents:", line.number));
      }
      lines.push_back(line);
    }
  }
  return lines;
}

}  // namespace

Result<std::vector<ReportSection>> MemorySections(std::span<const ReportFile> files) {
  const std::vector<std::string> may_differ = {"agents", "hops"};
  QKV_ASSIGN_OR_RETURN(const std::vector<FileGroup> groups, GroupFiles(files, kMemoryKind, TitleOf, may_differ));
  std::vector<ReportSection> sections;
  for (const FileGroup& group : groups) {
    QKV_ASSIGN_OR_RETURN(const std::vector<MemoryLine> lines, LinesOf(group));
    if (lines.empty())
      return Status(StatusCode::kInvalidArgument, group.files.front()->path + ": there are no results yet");
    sections.push_back(SectionOf(group.title, lines));
    AddLeftOut(*group.files.front(), &sections.back());
  }
  return sections;
}

}  // namespace qkvshare
