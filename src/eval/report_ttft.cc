#include "eval/report_ttft.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "agents/html_text.h"
#include "base/amounts.h"
#include "eval/model_title.h"
#include "eval/svg_plot.h"
#include "eval/ttft.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kShownPercent = 0.05;  // of a bar; less is under a pixel

std::string TitleOf(const Json& header) {
  const std::string model = ModelTitle(header);
  if (model.empty() || !header.contains("pack") || !header["pack"].is_object()) return "";
  const Json& pack = header["pack"];
  const std::string budget = HeaderText(pack, "max_bytes") == "0" ? HeaderText(pack, "code_bits") + " bits"
                                                                  : HeaderText(pack, "max_bytes") + " bytes";
  return fmt::format("{}, cards of {} by {}", model, budget, HeaderText(pack, "policy"));
}

Result<std::vector<TtftLine>> LinesOf(const FileGroup& group) {
  std::vector<TtftLine> lines;
  for (const ReportFile* file : group.files) {
    QKV_ASSIGN_OR_RETURN(const std::vector<TtftLine> more, ParseLines(*file, ParseTtft));
    for (const TtftLine& line : more) {
      const bool there = std::any_of(lines.begin(), lines.end(), [&](const TtftLine& other) {
        return other.depth == line.depth && other.way == line.way;
      });
      if (there) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("{}: {} at {} tokens is in another file too; give one of them", file->path, line.way,
                                  line.depth));
      }
      lines.push_back(line);
    }
  }
  std::sort(lines.begin(), lines.end(), [order = lines](const TtftLine& a, const TtftLine& b) {
    const auto at = [&](const TtftLine& line) {
      return std::find_if(order.begin(), order.end(), [&](const TtftLine& other) { return other.way == line.way; }) -
             order.begin();
    };
    return std::pair(a.depth, at(a)) < std::pair(b.depth, at(b));
  });
  return lines;
}

class TtftPart {
 public:
  explicit TtftPart(std::vector<TtftLine> lines) : lines_(std::move(lines)) {
    for (const TtftLine& line : lines_) {
      std::vector<std::string>& stages = stages_[IsSender(line) ? 1 : 0];
      for (const StageSpread& stage : line.stages) {
        if (std::find(stages.begin(), stages.end(), stage.name) == stages.end()) stages.push_back(stage.name);
      }
      if (depths_.empty() || depths_.back() != line.depth) depths_.push_back(line.depth);
    }
  }

  ReportSection Section(const std::string& title) const {
    ReportSection section;
    section.title = "Time to first token: " + title;
    const Plot plot = ByDepth();
    section.html = PlotKey(plot) + PlotSvg(plot) + "<h3>Stages of receivers</h3>\n" + Key(false) + Bars(false) +
                   "<h3>Stages of the sender of a card</h3>\n" + Key(true) + Bars(true);
    for (const size_t depth : depths_) {
      const TextTable table = TableOf(depth);
      section.html += FoldedTable(table);
      section.markdown += MarkdownTable(table) + "\n";
    }
    return section;
  }

 private:
  Plot ByDepth() const;
  static bool IsSender(const TtftLine& line) { return line.way == kSenderWay; }
  std::string Key(bool sender) const;
  std::string Bar(const TtftLine& line, int64_t scale_us) const;
  std::string Bars(bool sender) const;
  TextTable TableOf(size_t depth) const;

  std::vector<TtftLine> lines_;                     // by depth
  std::array<std::vector<std::string>, 2> stages_;  // of receivers; of senders
  std::vector<size_t> depths_;
};

Plot TtftPart::ByDepth() const {
  Plot plot;
  plot.label = "Median time to first token against the tokens of the context, by way";
  plot.x = {"tokens of the context", true, {}, {}};
  plot.y = {"time to first token", true, {}, {}};
  for (const size_t depth : depths_) {
    plot.x.ticks.push_back(static_cast<double>(depth));
    plot.x.tick_texts.push_back(CountText(depth));
  }
  double least = 1e12, most = 1;
  for (const TtftLine& line : lines_) {
    if (IsSender(line)) continue;
    auto series =
        std::find_if(plot.series.begin(), plot.series.end(), [&](const PlotSeries& s) { return s.name == line.way; });
    if (series == plot.series.end()) series = plot.series.insert(series, {line.way, {}, true, false});
    const auto us = [](int64_t value) { return std::max(static_cast<double>(value), 1.0); };
    PlotPoint point = {static_cast<double>(line.depth),
                       us(line.total.median_us),
                       us(line.total.least_us),
                       us(line.total.most_us),
                       "",
                       ""};
    point.title = fmt::format("{}, {} tokens: {}", line.way, CountText(line.depth), FormatUs(line.total.median_us));
    series->points.push_back(std::move(point));
    least = std::min(least, us(line.total.least_us));
    most = std::max(most, us(line.total.most_us));
  }
  plot.y.ticks = DecadeTicks(std::min(least, most), most);
  for (const double tick : plot.y.ticks) plot.y.tick_texts.push_back(FormatUs(static_cast<int64_t>(tick)));
  return plot;
}

std::string TtftPart::Key(bool sender) const {
  const std::vector<std::string>& stages = stages_[sender ? 1 : 0];
  std::string out = "<p class=\"key\">";
  for (size_t i = 0; i < stages.size(); ++i)
    out += fmt::format("<span><b class=\"s{}\"></b>{}</span>", i % kPlotStyles, HtmlText(stages[i]));
  return out + "</p>\n";
}

std::string TtftPart::Bar(const TtftLine& line, int64_t scale_us) const {
  const std::vector<std::string>& stages = stages_[IsSender(line) ? 1 : 0];
  std::string out = "<div class=\"bar\">";
  for (const StageSpread& stage : line.stages) {
    const double percent = 100 * static_cast<double>(stage.time.median_us) / static_cast<double>(scale_us);
    if (percent < kShownPercent) continue;
    const auto at = std::find(stages.begin(), stages.end(), stage.name) - stages.begin();
    out += fmt::format("<b class=\"s{}\" style=\"width:{:.2f}%\" title=\"{}: {}\"></b>",
                       static_cast<size_t>(at) % kPlotStyles, std::min(percent, 100.0), HtmlText(stage.name),
                       FormatUs(stage.time.median_us));
  }
  return out + "</div>";
}

// Re-prefill is too long for one scale with the others: it is told in words.
std::string TtftPart::Bars(bool sender) const {
  std::string out;
  for (const size_t depth : depths_) {
    int64_t longest_us = 1;
    const TtftLine* reprefill = nullptr;
    std::vector<const TtftLine*> shown;
    for (const TtftLine& line : lines_) {
      if (line.depth != depth || IsSender(line) != sender) continue;
      if (line.way == kReprefillWay) {
        reprefill = &line;
        continue;
      }
      int64_t us = 0;
      for (const StageSpread& stage : line.stages) us += stage.time.median_us;
      longest_us = std::max(longest_us, us);
      shown.push_back(&line);
    }
    if (shown.empty()) continue;
    out += fmt::format("<h4>{} tokens{}</h4>\n<div class=\"bars\">\n", CountText(depth),
                       reprefill == nullptr ? "" : "; re-prefill takes " + FormatUs(reprefill->total.median_us));
    for (const TtftLine* line : shown) {
      const std::string ratio = line->speedup > 0 ? fmt::format(", {:.1f}x", line->speedup) : "";
      out += fmt::format("<em>{}</em>{}<span>{}{}</span>\n", HtmlText(line->way), Bar(*line, longest_us),
                         FormatUs(line->total.median_us), ratio);
    }
    out += "</div>\n";
  }
  return out;
}

TextTable TtftPart::TableOf(size_t depth) const {
  TextTable table;
  table.title = fmt::format("{} tokens", CountText(depth));
  table.heads = {"way", "bytes", "median", "least", "most", "faster", "write", "stages"};
  for (const TtftLine& line : lines_) {
    if (line.depth != depth) continue;
    std::vector<std::string> stages;
    for (const StageSpread& stage : line.stages)
      stages.push_back(fmt::format("{} {}", stage.name, FormatUs(stage.time.median_us)));
    table.rows.push_back(
        {line.way, FormatBytes(line.bytes), FormatUs(line.total.median_us), FormatUs(line.total.least_us),
         FormatUs(line.total.most_us), line.speedup > 0 ? fmt::format("{:.1f}x", line.speedup) : "-",
         line.write ? FormatUs(line.write->median_us) : "-", fmt::format("{}", fmt::join(stages, ", "))});
  }
  table.note =
      "Files are in the page cache; faster: against re-prefill in the same turn, the median; write: of a state's "
      "sender, until the disk has the file (a card's is a stage of its sender).";
  return table;
}

}  // namespace

Result<std::vector<ReportSection>> TtftSections(std::span<const ReportFile> files) {
  const std::vector<std::string> may_differ = {"depths"};
  QKV_ASSIGN_OR_RETURN(const std::vector<FileGroup> groups, GroupFiles(files, kTtftKind, TitleOf, may_differ));
  std::vector<ReportSection> sections;
  for (const FileGroup& group : groups) {
    QKV_ASSIGN_OR_RETURN(std::vector<TtftLine> lines, LinesOf(group));
    if (lines.empty())
      return Status(StatusCode::kInvalidArgument, group.files.front()->path + ": there are no results yet");
    sections.push_back(TtftPart(std::move(lines)).Section(group.title));
    AddLeftOut(*group.files.front(), &sections.back());
    AddUnfinished(group, {"depth", "depths", "depths"}, &sections.back());
  }
  return sections;
}

}  // namespace qkvshare
