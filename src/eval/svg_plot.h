// A plot as inline SVG: points, lines, error bars and labels. Colours and shapes are the style sheet's (kReportStyle),
// so that it is good on a light and a dark page.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace qkvshare {

struct PlotPoint {
  double x = 0, y = 0;
  double low = std::numeric_limits<double>::quiet_NaN(), high = low;  // of the error bar; NaN: none
  std::string name = {};                                              // shown beside it; empty: none
  std::string title = {};                                             // shown on hovering
};

// Points of one colour and shape.
struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;
  bool joined = false;  // by a line, in their order
  bool hollow = false;
};

struct PlotAxis {
  std::string title;
  bool log = false;
  // Of what is shown: from the first to the last tick. Not empty, rising; where log, all above 0.
  std::vector<double> ticks;
  std::vector<std::string> tick_texts;  // of each
};

struct Plot {
  std::string label;  // what it shows, for those who do not see it
  PlotAxis x, y;
  std::vector<PlotSeries> series;
  std::vector<std::pair<double, double>> front;         // a dashed line through these; empty: none
  std::optional<std::pair<double, std::string>> level;  // a dashed line at this y, and its name
};

inline constexpr size_t kPlotStyles = 10;  // of series, by their order; then they begin again

// Values outside of the axes are drawn at their ends.
std::string PlotSvg(const Plot& plot);
// The series' names beside their marks, as HTML.
std::string PlotKey(const Plot& plot);

// 1, 2, 5, 10...: from 0 to at least `most`, about five of them. most: above 0.
std::vector<double> LinearTicks(double most);
// Powers of ten, from at most `least` to at least `most`. Both above 0.
std::vector<double> DecadeTicks(double least, double most);

}  // namespace qkvshare
