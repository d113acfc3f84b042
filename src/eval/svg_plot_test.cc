#include "eval/svg_plot.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>

namespace qkvshare {
namespace {

PlotAxis Axis(std::vector<double> ticks, bool log) {
  PlotAxis axis;
  axis.title = "<axis>";
  axis.log = log;
  for (const double tick : ticks) axis.tick_texts.push_back(std::to_string(tick));
  axis.ticks = std::move(ticks);
  return axis;
}

Plot OnePoint(double x, double y, bool log) {
  Plot plot;
  plot.x = Axis({1, 100}, log);
  plot.y = Axis({1, 100}, log);
  plot.series.push_back({"a & b", {{x, y}}});
  return plot;
}

// Where the first mark's path starts: its left end, at the height of its middle.
std::pair<double, double> MarkAt(const std::string& svg) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(svg, found, std::regex(R"re(class="mark" d="M([\d.]+) ([\d.]+))re"))) << svg;
  return {std::stod(found[1]) + 4.5, std::stod(found[2])};
}

TEST(SvgPlotTest, PointsAreWhereTheAxesSay) {
  const auto low = MarkAt(PlotSvg(OnePoint(1, 1, true))), high = MarkAt(PlotSvg(OnePoint(100, 100, true)));
  const auto middle = MarkAt(PlotSvg(OnePoint(10, 10, true)));
  EXPECT_LT(low.first, high.first);
  EXPECT_GT(low.second, high.second);  // down is more
  EXPECT_NEAR(middle.first, (low.first + high.first) / 2, 0.11);
  EXPECT_NEAR(middle.second, (low.second + high.second) / 2, 0.11);
  const auto linear = MarkAt(PlotSvg(OnePoint(50.5, 50.5, false)));
  EXPECT_NEAR(linear.first, middle.first, 0.11);
  EXPECT_NEAR(linear.second, middle.second, 0.11);
}

TEST(SvgPlotTest, WhatLiesOutsideIsDrawnAtTheEnd) {
  EXPECT_EQ(MarkAt(PlotSvg(OnePoint(1e9, 0, true))), MarkAt(PlotSvg(OnePoint(100, 1, true))));
  EXPECT_EQ(MarkAt(PlotSvg(OnePoint(-5, -5, false))), MarkAt(PlotSvg(OnePoint(1, 1, false))));
}

TEST(SvgPlotTest, TextsAreNoMarkup) {
  Plot plot = OnePoint(10, 10, true);
  plot.series[0].points[0].name = "<b>";
  plot.series[0].points[0].title = "a\"b";
  plot.level = {10, "<floor>"};
  plot.label = "\"x\"";
  const std::string svg = PlotSvg(plot), key = PlotKey(plot);
  for (const char* text : {"&lt;b&gt;", "a&quot;b", "&lt;floor&gt;", "aria-label=\"&quot;x&quot;\"", "&lt;axis&gt;"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  EXPECT_NE(key.find("a &amp; b"), std::string::npos);
}

TEST(SvgPlotTest, LabelsMakeWayForEachOther) {
  Plot plot = OnePoint(10, 10, true);
  plot.series[0].points.clear();
  for (const char* name : {"first", "second", "third"}) {
    PlotPoint point = {10, 10};
    point.name = name;
    plot.series[0].points.push_back(point);
  }
  const std::string svg = PlotSvg(plot);
  const std::regex label(R"re(class="name" x="([\d.]+)" y="([\d.]+)")re");
  std::set<std::string> places;
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), label); it != std::sregex_iterator(); ++it)
    places.insert((*it)[1].str() + "," + (*it)[2].str());
  EXPECT_EQ(places.size(), 3U);
}

TEST(SvgPlotTest, ErrorBarsOnlyWhereTheyAreKnown) {
  Plot plot = OnePoint(10, 10, true);
  EXPECT_EQ(PlotSvg(plot).find("class=\"error\""), std::string::npos);
  plot.series[0].points[0].low = 5;
  plot.series[0].points[0].high = 20;
  EXPECT_NE(PlotSvg(plot).find("class=\"error\""), std::string::npos);
}

TEST(SvgPlotTest, TicksCoverWhatIsShown) {
  for (const double most : {0.011, 0.3, 1.0, 7.0, 12.0, 99.0, 1234.0}) {
    const std::vector<double> ticks = LinearTicks(most);
    EXPECT_EQ(ticks.front(), 0);
    EXPECT_GE(ticks.back(), most);
    EXPECT_GE(ticks.size(), 3U) << most;
    EXPECT_LE(ticks.size(), 8U) << most;
  }
  EXPECT_EQ(LinearTicks(1), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
  EXPECT_EQ(DecadeTicks(0.02, 3), (std::vector<double>{0.01, 0.1, 1, 10}));
  EXPECT_EQ(DecadeTicks(1, 1), (std::vector<double>{1, 10}));
}

}  // namespace
}  // namespace qkvshare
