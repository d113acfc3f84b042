#include "eval/report_fidelity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "agents/html_text.h"
#include "eval/fidelity_map.h"
#include "eval/fidelity_run.h"
#include "eval/fidelity_tables.h"
#include "eval/model_title.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char *kFloor = "floor", *kOracle = "oracle";
constexpr double kBitTicks[] = {1, 2, 3, 4, 6, 8, 12, 16, 32};
constexpr double kSlack = 1.03;      // more than the last tick, drawn there
constexpr size_t kNamedPoints = 14;  // with more, policies off the front are not named
constexpr double kLeastKl = 1e-7;    // shown; less is as good as nothing

// "uniform" of "uniform@4,levels=K4V2".
std::string FamilyOf(const std::string& arm) { return arm.substr(0, arm.find_first_of("@:,")); }

// Of the many: a card of some policy and bits.
bool IsPolicy(const std::string& arm) { return arm.find('@') != std::string::npos; }

std::vector<FidelityRow> RowsOfAllKinds(const FidelitySummary& summary) {
  std::vector<FidelityRow> rows;
  std::copy_if(summary.rows.begin(), summary.rows.end(), std::back_inserter(rows),
               [](const FidelityRow& row) { return row.kind.empty(); });
  return rows;
}

void SetBitTicks(std::span<const FidelityRow> rows, PlotAxis* axis) {
  double least = 16, most = 2;
  for (const FidelityRow& row : rows) {
    if (row.arm == kFloor) continue;
    least = std::min(least, row.total_bits);
    most = std::max(most, row.total_bits);
  }
  for (size_t i = 0; i < std::size(kBitTicks); ++i) {
    const bool below = i + 1 < std::size(kBitTicks) && kBitTicks[i + 1] <= least;
    const bool above = i > 0 && kSlack * kBitTicks[i - 1] >= most;
    if (below || above) continue;
    axis->ticks.push_back(kBitTicks[i]);
    axis->tick_texts.push_back(fmt::format("{:g}", kBitTicks[i]));
  }
}

Result<FidelitySummary> Summarize(const FileGroup& group, std::span<const std::string> against) {
  QKV_ASSIGN_OR_RETURN(const std::vector<FidelityLine> lines, FidelityLinesOf(group));
  FidelitySummaryOptions options;
  for (const std::string& arm : against) {
    if (std::any_of(lines.begin(), lines.end(), [&](const FidelityLine& line) { return line.arm == arm; }))
      options.against.push_back(arm);
  }
  Result<FidelitySummary> summary = SummarizeFidelity(lines, options);
  if (summary) return summary;
  return Status(summary.status().code(), fmt::format("{}: {}", group.files.front()->path, summary.status().message()));
}

std::string FrontText(std::span<const FidelityRow> rows) {
  std::vector<std::string> texts;
  for (const FidelityRow* row : ParetoFront(rows))
    texts.push_back(fmt::format("{} ({:.2f} bits, {:.5f})", row->arm, row->total_bits, row->mean_kl.value));
  const bool no_noise = std::any_of(rows.begin(), rows.end(),
                                    [](const FidelityRow& row) { return row.arm == kFloor && row.mean_kl.value <= 0; });
  return fmt::format("On the Pareto front of all bits and mean KL: {}.{}", fmt::join(texts, ", "),
                     no_noise ? " The noise floor is 0, and not drawn." : "");
}

ReportSection SectionOf(const std::string& title, const FidelitySummary& summary) {
  const std::vector<FidelityRow> rows = RowsOfAllKinds(summary);
  const Plot plot = FidelityPlot(rows);
  const std::string front = FrontText(rows);
  ReportSection section;
  section.title = "Fidelity: " + title;
  section.html = PlotKey(plot) + PlotSvg(plot) + HtmlNote(front);
  const std::vector<TextTable> tables = FidelityTables(summary);
  const size_t open = rows.size() > 1 ? 1 + rows.front().against.size() : 1;  // those of all kinds
  for (size_t i = 0; i < tables.size(); ++i) {
    section.html += i < open ? fmt::format("<h3>{}</h3>\n", HtmlText(tables[i].title)) + HtmlTable(tables[i])
                             : FoldedTable(tables[i]);
    section.markdown += MarkdownTable(tables[i]) + "\n";
  }
  section.markdown += front + "\n";
  return section;
}

void AddPoint(const FidelityRow& row, bool named, Plot* plot) {
  const std::string family = FamilyOf(row.arm);
  auto series =
      std::find_if(plot->series.begin(), plot->series.end(), [&](const PlotSeries& s) { return s.name == family; });
  if (series == plot->series.end())
    series = plot->series.insert(series, {family, {}, /*joined=*/false, /*hollow=*/family == kOracle});
  const Interval kl = Shown(row.mean_kl, row.prompts);
  PlotPoint point = {row.total_bits, kl.value, kl.low, kl.high};
  if (named) point.name = row.arm;
  point.title = fmt::format("{}: {:.2f} bits, KL {}", row.arm, row.total_bits, IntervalText(kl, 5));
  series->points.push_back(std::move(point));
}

// Empty where the header lacks something.
std::string TitleOf(const Json& header) {
  const std::string model = ModelTitle(header), set = HeaderText(header, "set"),
                    context = HeaderText(header, "context");
  if (model.empty() || set.empty()) return "";
  return context.empty() ? fmt::format("{}, {}", model, set) : fmt::format("{}, {}, {} tokens", model, set, context);
}

}  // namespace

PlotAxis KlAxis(std::span<const FidelityRow> rows) {
  double least = 1, most = kLeastKl;
  for (const FidelityRow& row : rows) {
    if (row.mean_kl.value <= 0) continue;  // no place on a logarithmic scale
    const Interval kl = Shown(row.mean_kl, row.prompts);
    const double low = std::isfinite(kl.low) ? kl.low : kl.value;
    const double high = std::isfinite(kl.high) ? kl.high : kl.value;
    least = std::min(least, std::max(low, kLeastKl));
    most = std::max(most, high);
  }
  PlotAxis axis = {"mean KL, nats", true, DecadeTicks(least, most), {}};
  for (const double tick : axis.ticks) axis.tick_texts.push_back(fmt::format("{:g}", tick));
  return axis;
}

Result<std::vector<FidelityLine>> FidelityLinesOf(const FileGroup& group) {
  std::vector<FidelityLine> lines;
  for (const ReportFile* file : group.files) {
    QKV_ASSIGN_OR_RETURN(std::vector<FidelityLine> more, ParseLines(*file, ParseFidelityLine));
    std::move(more.begin(), more.end(), std::back_inserter(lines));
  }
  return lines;
}

std::vector<const FidelityRow*> ParetoFront(std::span<const FidelityRow> rows) {
  std::vector<const FidelityRow*> front;
  for (const FidelityRow& row : rows) {
    if (row.arm != kFloor && FamilyOf(row.arm) != kOracle) front.push_back(&row);
  }
  std::sort(front.begin(), front.end(), [](const FidelityRow* a, const FidelityRow* b) {
    return std::tuple(a->total_bits, a->mean_kl.value, a->arm) < std::tuple(b->total_bits, b->mean_kl.value, b->arm);
  });
  double least = INFINITY;
  std::erase_if(front, [&](const FidelityRow* row) {
    if (row->mean_kl.value >= least) return true;
    least = row->mean_kl.value;
    return false;
  });
  return front;
}

Plot FidelityPlot(std::span<const FidelityRow> rows) {
  Plot plot;
  plot.label = "Mean KL of each arm against its bits, with the Pareto front";
  plot.x = {"bits a channel, with all bytes", true, {}, {}};
  plot.y = KlAxis(rows);
  SetBitTicks(rows, &plot.x);
  const std::vector<const FidelityRow*> front = ParetoFront(rows);
  for (const FidelityRow& row : rows) {
    if (row.arm == kFloor) {
      if (row.mean_kl.value > 0) plot.level = {row.mean_kl.value, "noise floor"};
      continue;
    }
    const bool on_front = std::find(front.begin(), front.end(), &row) != front.end();
    AddPoint(row, rows.size() <= kNamedPoints || on_front || !IsPolicy(row.arm), &plot);
  }
  for (const FidelityRow* row : front) {
    if (!plot.front.empty()) plot.front.emplace_back(row->total_bits, plot.front.back().second);
    plot.front.emplace_back(row->total_bits, row->mean_kl.value);
  }
  return plot;
}

Result<std::vector<ReportSection>> FidelitySections(std::span<const ReportFile> files,
                                                    std::span<const std::string> against) {
  const std::vector<std::string> may_differ = {"arms"};
  QKV_ASSIGN_OR_RETURN(const std::vector<FileGroup> groups, GroupFiles(files, kFidelityKind, TitleOf, may_differ));
  std::vector<ReportSection> sections;
  for (const FileGroup& group : groups) {
    QKV_ASSIGN_OR_RETURN(const FidelitySummary summary, Summarize(group, against));
    ReportSection& section = sections.emplace_back(SectionOf(group.title, summary));
    QKV_ASSIGN_OR_RETURN(const std::string maps, TokenMaps(group));
    if (!maps.empty()) section.html += "<h3>Widths of a context's tokens</h3>\n" + maps;
    AddUnfinished(group, {"prompt", "prompts", "prompts"}, &section);
  }
  return sections;
}

}  // namespace qkvshare
