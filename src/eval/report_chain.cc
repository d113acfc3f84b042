#include "eval/report_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "agents/html_text.h"
#include "eval/chain_report.h"
#include "eval/hop_header.h"
#include "eval/model_title.h"

namespace qkvshare {
namespace {

constexpr double kDodge = 0.05;  // hops between the marks of two arms, so that their intervals can be seen

ReportSection SectionOf(const std::string& model, const ChainSummary& summary) {
  const Plot plot = ChainPlot(summary);
  ReportSection section;
  section.title = "Chains of GSM8K: " + model;
  section.html = PlotKey(plot) + PlotSvg(plot);
  for (const TextTable& table : ChainTables(summary)) {
    section.html += fmt::format("<h3>{}</h3>\n", HtmlText(table.title)) + HtmlTable(table);
    section.markdown += MarkdownTable(table) + "\n";
  }
  return section;
}

}  // namespace

Plot ChainPlot(const ChainSummary& summary) {
  Plot plot;
  plot.label = "Share of right answers after each hop, by arm, with intervals of 95%";
  plot.x.title = "hop";
  plot.y.title = "right answers";
  const auto arms = static_cast<double>(summary.arms.size());
  const double spread = std::min(kDodge * (arms - 1) / 2, 0.4);  // to each side of a hop
  for (size_t hop = 0; hop <= summary.hops + 1; ++hop) {
    plot.x.ticks.push_back(static_cast<double>(hop));
    plot.x.tick_texts.push_back(hop == 0 || hop > summary.hops ? "" : fmt::format("{}", hop));
  }
  const size_t drawn = MostChains(summary);
  double most = 0.01;
  for (size_t i = 0; i < summary.arms.size(); ++i) {
    const ChainArmRow& arm = summary.arms[i];
    if (arm.chains < drawn) continue;  // its shares are of fewer problems than those of the others
    PlotSeries series = {arm.arm, {}, true, false};
    for (size_t hop = 0; hop < arm.hops.size(); ++hop) {
      const ChainHopRow& row = arm.hops[hop];
      if (row.answers == 0) continue;
      const double shift = arms > 1 ? spread * (2 * static_cast<double>(i) / (arms - 1) - 1) : 0;
      PlotPoint point = {
          static_cast<double>(hop + 1) + shift, row.accuracy.value, row.accuracy.low, row.accuracy.high, "", ""};
      point.title = fmt::format("{}, hop {}: {} of {} right", arm.arm, hop + 1, row.right, row.answers);
      series.points.push_back(std::move(point));
      most = std::max(most, row.accuracy.high);
    }
    plot.series.push_back(std::move(series));
  }
  plot.y.ticks = LinearTicks(most);
  for (const double tick : plot.y.ticks) plot.y.tick_texts.push_back(fmt::format("{:g}%", 100 * tick));
  return plot;
}

Result<std::vector<ReportSection>> ChainSections(std::span<const ReportFile> files,
                                                 std::span<const std::string> against) {
  std::vector<std::pair<std::string, std::vector<std::string>>> models;  // and their files
  for (const ReportFile& file : files) {
    if (file.kind != kHopKind) continue;
    const std::string model = ModelTitle(file.results.header);
    auto found = std::find_if(models.begin(), models.end(), [&](const auto& m) { return m.first == model; });
    if (found == models.end()) found = models.insert(models.end(), {model, {}});
    found->second.push_back(file.path);
  }
  std::vector<ReportSection> sections;
  for (const auto& [model, paths] : models) {
    QKV_ASSIGN_OR_RETURN(const std::vector<ChainResults> results, ReadChainResults(paths));
    const auto has = [&](const std::string& arm) {
      return std::any_of(results.begin(), results.end(), [&](const ChainResults& r) { return r.arm == arm; });
    };
    std::vector<std::string> known;
    std::copy_if(against.begin(), against.end(), std::back_inserter(known), has);
    QKV_ASSIGN_OR_RETURN(const ChainSummary summary, SummarizeChains(results, known));
    sections.push_back(SectionOf(model, summary));
  }
  return sections;
}

}  // namespace qkvshare
