#include "eval/report_hops.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "agents/html_text.h"
#include "eval/fidelity_tables.h"
#include "eval/hop_kl_report.h"
#include "eval/hop_kl_run.h"
#include "eval/model_title.h"
#include "eval/report_fidelity.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kDodge = 0.05;  // hops between the marks of two arms, so that their intervals can be seen

// Those of the second hop and after it.
std::vector<FidelityRow> HandedOver(const FidelitySummary& summary) {
  std::vector<FidelityRow> rows;
  for (const HopKlRow& arm : HopKlRows(summary)) {
    for (size_t hop = 1; hop < arm.hops.size(); ++hop) rows.push_back(*arm.hops[hop]);
  }
  return rows;
}

ReportSection SectionOf(const std::string& title, const FidelitySummary& summary) {
  ReportSection section;
  section.title = "KL by hop: " + title;
  if (summary.kinds.size() > 1) {
    const Plot plot = HopKlPlot(summary);
    section.html = PlotKey(plot) + PlotSvg(plot);
  }
  for (const TextTable& table : HopKlTables(summary)) {
    section.html += fmt::format("<h3>{}</h3>\n", HtmlText(table.title)) + HtmlTable(table);
    section.markdown += MarkdownTable(table) + "\n";
  }
  return section;
}

std::string TitleOf(const Json& header) { return ModelTitle(header); }

}  // namespace

Plot HopKlPlot(const FidelitySummary& summary) {
  Plot plot;
  plot.label = "Mean KL of answers in each hop, by arm, with intervals of 95%";
  plot.x.title = "hop";
  for (size_t hop = 1; hop <= summary.kinds.size() + 1; ++hop) {
    plot.x.ticks.push_back(static_cast<double>(hop));
    plot.x.tick_texts.push_back(hop == 1 || hop > summary.kinds.size() ? "" : fmt::format("{}", hop));
  }
  plot.y = KlAxis(HandedOver(summary));
  const std::vector<HopKlRow> arms = HopKlRows(summary);
  const auto most = static_cast<double>(arms.size() - 1);
  const double spread = std::min(kDodge * most / 2, 0.4);  // to each side of a hop
  for (size_t i = 0; i < arms.size(); ++i) {
    PlotSeries series = {arms[i].arm, {}, /*joined=*/true, /*hollow=*/false};
    const double shift = most > 0 ? spread * (2 * static_cast<double>(i) / most - 1) : 0;
    for (size_t hop = 1; hop < arms[i].hops.size(); ++hop) {
      const FidelityRow& row = *arms[i].hops[hop];
      if (row.mean_kl.value <= 0) continue;
      const Interval kl = Shown(row.mean_kl, row.prompts);
      PlotPoint point = {static_cast<double>(hop + 1) + shift, kl.value, kl.low, kl.high};
      point.title = fmt::format("{}, {}: KL {}", row.arm, row.kind, IntervalText(kl, 5));
      series.points.push_back(std::move(point));
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

Result<std::vector<ReportSection>> HopSections(std::span<const ReportFile> files,
                                               std::span<const std::string> against) {
  const std::vector<std::string> may_differ = {"arms"};
  QKV_ASSIGN_OR_RETURN(const std::vector<FileGroup> groups, GroupFiles(files, kHopKlKind, TitleOf, may_differ));
  std::vector<ReportSection> sections;
  for (const FileGroup& group : groups) {
    QKV_ASSIGN_OR_RETURN(const std::vector<FidelityLine> lines, FidelityLinesOf(group));
    std::vector<std::string> known;
    for (const std::string& arm : against) {
      if (std::any_of(lines.begin(), lines.end(), [&](const FidelityLine& line) { return line.arm == arm; }))
        known.push_back(arm);
    }
    const Result<FidelitySummary> summary = SummarizeHopKl(lines, known);
    if (!summary) {
      return Status(summary.status().code(),
                    fmt::format("{}: {}", group.files.front()->path, summary.status().message()));
    }
    AddUnfinished(group, {"prompt", "prompts", "conversations"},
                  &sections.emplace_back(SectionOf(group.title, *summary)));
  }
  return sections;
}

}  // namespace qkvshare
