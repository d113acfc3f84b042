#include "eval/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "agents/html_text.h"

namespace qkvshare {
namespace {

constexpr double kWidth = 900, kHeight = 430;
constexpr double kLeft = 68, kRight = 30, kTop = 14, kBottom = 48;
constexpr double kMark = 4.5;                                  // half of a mark's size
constexpr double kAdvance = 6.3, kLabelHeight = 14, kGap = 9;  // of labels
constexpr int kLabelSteps = 9;                                 // up and down from a point

struct Box {
  double left, top, right, bottom;
  bool Meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// A value's place between two ends, as it is seen.
double ShareOf(const PlotAxis& axis, double value) {
  const auto seen = [&](double v) { return axis.log ? std::log(std::max(v, axis.ticks.front() / 2)) : v; };
  const double low = seen(axis.ticks.front()), high = seen(axis.ticks.back());
  return high > low ? std::clamp((seen(value) - low) / (high - low), 0.0, 1.0) : 0.5;
}

std::string MarkPath(size_t style, double x, double y) {
  const double r = kMark;
  switch (style % 5) {
    case 0:
      return fmt::format("M{:.1f} {:.1f}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z", x - r, y, fmt::arg("r", r),
                         fmt::arg("d", 2 * r));
    case 1: return fmt::format("M{:.1f} {:.1f}h{d}v{d}h-{d}z", x - r, y - r, fmt::arg("d", 2 * r));
    case 2: return fmt::format("M{:.1f} {:.1f}l{:.1f} {:.1f}h{:.1f}z", x, y - 1.2 * r, 1.2 * r, 2.2 * r, -2.4 * r);
    case 3: return fmt::format("M{:.1f} {:.1f}l{e} {e}l-{e} {e}l-{e} -{e}z", x, y - 1.3 * r, fmt::arg("e", 1.3 * r));
    default: return fmt::format("M{:.1f} {:.1f}l{:.1f} {:.1f}h{:.1f}z", x, y + 1.2 * r, 1.2 * r, -2.2 * r, -2.4 * r);
  }
}

class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot) {}

  std::string Svg() {
    DrawAxes();
    DrawFront();
    for (size_t i = 0; i < plot_.series.size(); ++i) DrawSeries(plot_.series[i], i % kPlotStyles);
    DrawLabels();
    return fmt::format("<svg class=\"plot\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}{}{}</svg>\n",
                       kWidth, kHeight, HtmlText(plot_.label), grid_, marks_, labels_);
  }

 private:
  double X(double value) const { return kLeft + ShareOf(plot_.x, value) * (kWidth - kLeft - kRight); }
  double Y(double value) const { return kHeight - kBottom - ShareOf(plot_.y, value) * (kHeight - kTop - kBottom); }

  void DrawAxes() {
    for (size_t i = 0; i < plot_.y.ticks.size(); ++i) {
      const double y = Y(plot_.y.ticks[i]);
      grid_ += fmt::format(
          "<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/><text class=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
          kLeft, y, kWidth - kRight, kLeft - 8, y + 4, HtmlText(plot_.y.tick_texts[i]));
    }
    for (size_t i = 0; i < plot_.x.ticks.size(); ++i) {
      const double x = X(plot_.x.ticks[i]);
      grid_ += fmt::format(
          "<path class=\"grid\" d=\"M{:.1f} {:.1f}V{:.1f}\"/><text class=\"mid\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
          x, kTop, kHeight - kBottom, x, kHeight - kBottom + 17, HtmlText(plot_.x.tick_texts[i]));
    }
    const double middle = (kTop + kHeight - kBottom) / 2;
    grid_ += fmt::format(
        "<text class=\"mid\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n<text class=\"mid\" x=\"14\" y=\"{:.1f}\" "
        "transform=\"rotate(-90 14 {:.1f})\">{}</text>\n",
        (kLeft + kWidth - kRight) / 2, kHeight - 10, HtmlText(plot_.x.title), middle, middle, HtmlText(plot_.y.title));
    if (!plot_.level) return;
    const double y = Y(plot_.level->first);
    grid_ += fmt::format(
        "<path class=\"level\" d=\"M{:.1f} {:.1f}H{:.1f}\"/><text class=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
        kLeft, y, kWidth - kRight, kWidth - kRight - 4, y - 5, HtmlText(plot_.level->second));
    taken_.push_back(
        {kWidth - kRight - 4 - kAdvance * static_cast<double>(plot_.level->second.size()), y - 16, kWidth, y});
  }

  void DrawFront() {
    std::string path;
    for (const auto& [x, y] : plot_.front) path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", X(x), Y(y));
    if (!path.empty()) grid_ += fmt::format("<path class=\"front\" d=\"{}\"/>\n", path);
  }

  void DrawSeries(const PlotSeries& series, size_t style) {
    std::string line;
    std::string marks;
    for (const PlotPoint& point : series.points) {
      const double x = X(point.x), y = Y(point.y);
      line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L", x, y);
      marks += "<g>";
      if (!point.title.empty()) marks += "<title>" + HtmlText(point.title) + "</title>";
      if (std::isfinite(point.low) && std::isfinite(point.high))
        marks += fmt::format("<path class=\"error\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>", x, Y(point.low), Y(point.high));
      marks += fmt::format("<path class=\"mark\" d=\"{}\"/></g>\n", MarkPath(style, x, y));
      taken_.push_back({x - kMark, y - kMark, x + kMark, y + kMark});
    }
    marks_ += fmt::format("<g class=\"s{}{}\">\n", style, series.hollow ? " hollow" : "");
    if (series.joined) marks_ += fmt::format("<path class=\"join\" d=\"{}\"/>\n", line);
    marks_ += marks + "</g>\n";
  }

  // Where it meets nothing, as near to its point as can be; else where it meets the least.
  void DrawLabel(const std::string& name, double x, double y) {
    const double width = kAdvance * static_cast<double>(name.size());
    Box best{};
    bool best_left = false;
    auto fewest = static_cast<std::ptrdiff_t>(taken_.size() + 1);
    for (int step = 0; step < 2 * kLabelSteps && fewest > 0; ++step) {
      const int halves = (step + 1) / 2;
      const double dy = (step % 2 == 0 ? 0.5 : -0.5) * kLabelHeight * halves;
      for (const bool left : {false, true}) {
        const double from = left ? x - kGap - width : x + kGap;
        const Box box = {from, y + dy - kLabelHeight / 2, from + width, y + dy + kLabelHeight / 2};
        if (box.left < kLeft || box.right > kWidth || box.top < 0 || box.bottom > kHeight - kBottom) continue;
        const auto meets =
            std::count_if(taken_.begin(), taken_.end(), [&](const Box& other) { return box.Meets(other); });
        if (meets >= fewest) continue;
        fewest = meets;
        best = box;
        best_left = left;
      }
    }
    if (best.right == 0) return;  // too long for the plot; the title has it
    taken_.push_back(best);
    const double middle = (best.top + best.bottom) / 2, near = best_left ? best.right + 2 : best.left - 2;
    if (std::abs(middle - y) > kLabelHeight)
      labels_ += fmt::format("<path class=\"lead\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>", x, y, near, middle);
    labels_ +=
        fmt::format("<text class=\"name\" x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", best_left ? best.right : best.left,
                    middle + 4, best_left ? " style=\"text-anchor:end\"" : "", HtmlText(name));
  }

  void DrawLabels() {
    std::vector<std::pair<const PlotPoint*, double>> points;
    for (const PlotSeries& series : plot_.series) {
      for (const PlotPoint& point : series.points) {
        if (!point.name.empty()) points.emplace_back(&point, Y(point.y));
      }
    }
    std::sort(points.begin(), points.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second, a.first->name) < std::pair(b.second, b.first->name);
    });
    for (const auto& [point, y] : points) DrawLabel(point->name, X(point->x), y);
  }

  const Plot& plot_;
  std::string grid_, marks_, labels_;
  std::vector<Box> taken_;
};

}  // namespace

std::string PlotSvg(const Plot& plot) { return "<div class=\"wide\">" + Drawing(plot).Svg() + "</div>\n"; }

std::string PlotKey(const Plot& plot) {
  std::string out = "<p class=\"key\">";
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const PlotSeries& series = plot.series[i];
    out += fmt::format(
        "<span><svg class=\"plot sample s{0}{1}\" viewBox=\"0 0 14 14\" aria-hidden=\"true\"><path class=\"mark\" "
        "d=\"{2}\"/></svg>{3}</span>",
        i % kPlotStyles, series.hollow ? " hollow" : "", MarkPath(i % kPlotStyles, 7, 7), HtmlText(series.name));
  }
  return out + "</p>\n";
}

std::vector<double> LinearTicks(double most) {
  double step = std::pow(10, std::floor(std::log10(most)) - 1);
  for (int i = 0; most / step > 5.5; ++i) step *= i % 3 == 1 ? 2.5 : 2;
  std::vector<double> ticks = {0};
  while (ticks.back() < most) ticks.push_back(static_cast<double>(ticks.size()) * step);
  return ticks;
}

std::vector<double> DecadeTicks(double least, double most) {
  const auto low = static_cast<int>(std::floor(std::log10(least)));
  const auto high = std::max(static_cast<int>(std::ceil(std::log10(most))), low + 1);
  std::vector<double> ticks;
  for (int i = low; i <= high; ++i) ticks.push_back(std::pow(10, i));
  return ticks;
}

}  // namespace qkvshare
