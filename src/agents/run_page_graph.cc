#include "agents/run_page_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "agents/html_text.h"

namespace qkvshare {
namespace {

// In CSS pixels.
constexpr double kNodeHeight = 46, kLaneHeight = 6, kGap = 14, kColumnGap = 92, kMargin = 8;
constexpr double kNameAdvance = 7.8, kLabelAdvance = 6.3, kLabelHeight = 13;  // of a character, generously
constexpr double kLeastWidth = 96, kMostWidth = 190;
constexpr double kLeastScale = 0.85;  // to fit a page; narrower ones are scrolled
constexpr size_t kSweeps = 9;         // forward and back, forward at last
constexpr double kLittle = 0.001;     // weight of what gives way

// A node, or the lane in which what it hands on passes a column: all that leads far from one node shares its lanes.
struct Item {
  size_t node = 0;
  bool is_lane = false;
  double y = 0;  // centre
  std::vector<size_t> before, after;

  double height() const { return is_lane ? kLaneHeight : kNodeHeight; }
};

double Distance(const Item& above, const Item& below) { return (above.height() + below.height()) / 2 + kGap; }

// Columns of items, with few crossings and few bends: items go to where their neighbours are, as far as there is room.
// Source: Sugiyama, Tagawa, Toda, "Methods for visual understanding of hierarchical system structures" (1981).
class Layout {
 public:
  explicit Layout(const std::vector<GraphNode>& nodes) : items_(nodes.size()) {
    std::vector<size_t> last_level(nodes.size());  // that something leads to
    for (size_t i = 0; i < nodes.size(); ++i) {
      items_[i].node = i;
      AddTo(nodes[i].level, i);
      for (const size_t from : nodes[i].takes) last_level[from] = std::max(last_level[from], nodes[i].level);
    }
    std::vector<std::vector<size_t>> lanes(nodes.size());  // of each node, from itself on
    for (size_t i = 0; i < nodes.size(); ++i) {
      lanes[i].push_back(i);
      for (size_t level = nodes[i].level + 1; level < last_level[i]; ++level) {
        items_.push_back({i, true, 0, {}, {}});
        AddTo(level, items_.size() - 1);
        Link(lanes[i].back(), items_.size() - 1);
        lanes[i].push_back(items_.size() - 1);
      }
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const size_t from : nodes[i].takes) Link(lanes[from][nodes[i].level - nodes[from].level - 1], i);
    }
    for (size_t level = 0; level < columns_.size(); ++level) Stack(level);
    for (size_t sweep = 0; sweep < kSweeps; ++sweep) Sweep(sweep % 2 == 0, /*reorder=*/true);
    for (size_t sweep = 0; sweep < kSweeps; ++sweep) Sweep(sweep % 2 == 0, /*reorder=*/false);
    MoveToTop();
  }

  const std::vector<Item>& items() const { return items_; }
  const std::vector<std::vector<size_t>>& columns() const { return columns_; }
  double height() const { return height_; }

 private:
  void AddTo(size_t level, size_t item) {
    columns_.resize(std::max(columns_.size(), level + 1));
    columns_[level].push_back(item);
  }
  void Link(size_t from, size_t to) {
    items_[from].after.push_back(to);
    items_[to].before.push_back(from);
  }

  void Stack(size_t level) {
    const std::vector<size_t>& column = columns_[level];
    for (size_t i = 1; i < column.size(); ++i) {
      items_[column[i]].y = items_[column[i - 1]].y + Distance(items_[column[i - 1]], items_[column[i]]);
    }
    if (column.empty()) return;
    const double middle = items_[column.back()].y / 2;
    for (const size_t item : column) items_[item].y -= middle;
  }

  // Where its neighbours of one side are; where it is, if there are none. Ways from node to node are to be straight,
  // and so are lanes; where these meet counts next to nothing.
  double Wish(size_t item, bool forward) const {
    const std::vector<size_t>& neighbours = forward ? items_[item].before : items_[item].after;
    double sum = 0, weights = 0;
    for (const size_t other : neighbours) {
      const double weight = items_[item].is_lane == items_[other].is_lane ? 1 : kLittle;
      sum += weight * items_[other].y;
      weights += weight;
    }
    return neighbours.empty() ? items_[item].y : sum / weights;
  }

  void Sweep(bool forward, bool reorder) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      std::vector<size_t>& column = columns_[forward ? i : columns_.size() - 1 - i];
      std::vector<double> wishes(items_.size());
      for (const size_t item : column) wishes[item] = Wish(item, forward);
      if (reorder) {
        const auto key = [&](size_t item) { return std::tuple(wishes[item], items_[item].y, item); };
        std::sort(column.begin(), column.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
      }
      Settle(column, wishes);
    }
  }

  // The places nearest to the wishes (weighted least squares) that keep order and distances: what is too near moves as
  // one. Lanes give way to nodes.
  void Settle(const std::vector<size_t>& column, const std::vector<double>& wishes) {
    struct Group {
      double sum;  // of wishes, less the offsets, by weight
      double weight;
      size_t count;
      double mean() const { return sum / weight; }
    };
    std::vector<Group> groups;
    std::vector<double> offsets(column.size());
    for (size_t i = 0; i < column.size(); ++i) {
      if (i > 0) offsets[i] = offsets[i - 1] + Distance(items_[column[i - 1]], items_[column[i]]);
      const double weight = items_[column[i]].is_lane ? kLittle : 1;
      groups.push_back({weight * (wishes[column[i]] - offsets[i]), weight, 1});
      while (groups.size() > 1 && groups.back().mean() < std::prev(groups.end(), 2)->mean()) {
        const Group last = groups.back();
        groups.pop_back();
        Group& group = groups.back();
        group = {group.sum + last.sum, group.weight + last.weight, group.count + last.count};
      }
    }
    size_t i = 0;
    for (const Group& group : groups) {
      for (size_t k = 0; k < group.count; ++k, ++i) items_[column[i]].y = group.mean() + offsets[i];
    }
  }

  void MoveToTop() {
    double top = 0, bottom = 0;
    for (const Item& item : items_) {
      top = std::min(top, item.y - item.height() / 2);
      bottom = std::max(bottom, item.y + item.height() / 2);
    }
    for (Item& item : items_) item.y += kMargin - top;
    height_ = bottom - top + 2 * kMargin;
  }

  std::vector<Item> items_;
  std::vector<std::vector<size_t>> columns_;
  double height_ = 0;
};

struct Point {
  double x = 0, y = 0;
};

// Of a curve that starts and ends level.
Point OnCurve(Point a, Point b, double t) {
  const double s = t * t * (3 - 2 * t);
  const double bend = 3 * t * (1 - t) * (1 - t) + 3 * t * t * (1 - t);
  return {a.x * (1 - t) * (1 - t) * (1 - t) + (a.x + b.x) / 2 * bend + b.x * t * t * t, a.y + (b.y - a.y) * s};
}

std::string Clipped(const std::string& text, double advance, double width) {
  const auto most = static_cast<size_t>(width / advance);
  return text.size() <= most ? text : text.substr(0, CutBefore(text, most - 1)) + "\u2026";
}

class Drawing {
 public:
  explicit Drawing(const std::vector<GraphNode>& nodes) : nodes_(nodes), layout_(nodes) {
    size_t longest = 0;
    for (const GraphNode& node : nodes) longest = std::max({longest, node.name.size(), node.detail.size() * 9 / 10});
    width_ = std::clamp(static_cast<double>(longest) * kNameAdvance + 24, kLeastWidth, kMostWidth);
  }

  std::string Svg() {
    for (size_t level = 0; level < layout_.columns().size(); ++level) {
      for (const size_t item : layout_.columns()[level]) DrawItem(layout_.items()[item], level);
    }
    const double right = Left(layout_.columns().size()) - kColumnGap + kMargin;
    return fmt::format(
        "<svg class=\"graph\" style=\"max-width:{0:.0f}px;min-width:{2:.0f}px\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
        "role=\"img\" "
        "aria-label=\"The turns from left to right, and what they handed on\">\n"
        "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" "
        "orient=\"auto\"><path class=\"tip\" d=\"M0 0L8 4L0 8z\"/></marker></defs>\n{3}{4}{5}</svg>\n",
        right, layout_.height(), kLeastScale * right, lines_, boxes_, labels_);
  }

 private:
  double Left(size_t level) const { return kMargin + static_cast<double>(level) * (width_ + kColumnGap); }

  void DrawItem(const Item& item, size_t level) {
    const Point start = {Left(level) + width_, item.y};
    if (item.is_lane) {
      lines_ += fmt::format("<path class=\"edge\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", Left(level), item.y, start.x);
    } else {
      DrawNode(nodes_[item.node], {Left(level), item.y - kNodeHeight / 2});
    }
    for (const size_t to : item.after) {
      const Item& next = layout_.items()[to];
      const Point end = {Left(level + 1), next.y};
      const double middle = (start.x + end.x) / 2;
      lines_ += fmt::format("<path class=\"edge\"{} d=\"M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}\"/>\n",
                            next.is_lane ? "" : " marker-end=\"url(#tip)\"", start.x, start.y, middle, start.y, middle,
                            end.y, end.x, end.y);
      if (!next.is_lane) DrawLabel(nodes_[item.node].handed, start, end, item.after.size(), next.before.size());
    }
  }

  void DrawNode(const GraphNode& node, Point at) {
    boxes_ += fmt::format(
        "<a href=\"{}\"><g class=\"node{}{}\"><title>{}</title>"
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" rx=\"5\"/>"
        "<text class=\"name\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text><text x=\"{:.1f}\" y=\"{:.1f}\">{}</text></g></a>\n",
        HtmlText(node.link), node.worker ? " worker" : "", node.done ? "" : " undone", HtmlText(node.title), at.x, at.y,
        width_, kNodeHeight, at.x + 11, at.y + 19, HtmlText(Clipped(node.name, kNameAdvance, width_ - 16)), at.x + 11,
        at.y + 36, HtmlText(Clipped(node.detail, kNameAdvance * 0.9, width_ - 16)));
  }

  // On the curve, towards the end where fewer meet, and where no other label is; else where the fewest are.
  void DrawLabel(const std::string& text, Point start, Point end, size_t meet_at_start, size_t meet_at_end) {
    if (text.empty()) return;
    const double wish = meet_at_start > meet_at_end ? 0.66 : meet_at_start < meet_at_end ? 0.34 : 0.5;
    const double width = static_cast<double>(text.size()) * kLabelAdvance;
    Point best;
    size_t fewest = SIZE_MAX;
    for (const double step : {0.0, 0.08, -0.08, 0.16, -0.16}) {
      const Point at = OnCurve(start, end, wish + step);
      const auto hit = [&](const Point& other) {
        return std::abs(other.x - at.x) < width && std::abs(other.y - at.y) < kLabelHeight;
      };
      const auto hits = static_cast<size_t>(std::count_if(taken_.begin(), taken_.end(), hit));
      if (hits < fewest) {
        fewest = hits;
        best = at;
      }
    }
    taken_.push_back(best);
    labels_ +=
        fmt::format("<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", best.x, best.y - 5, HtmlText(text));
  }

  const std::vector<GraphNode>& nodes_;
  Layout layout_;
  double width_ = 0;
  std::string lines_, boxes_, labels_;
  std::vector<Point> taken_;  // by labels
};

}  // namespace

std::string GraphSvg(const std::vector<GraphNode>& nodes) { return nodes.empty() ? "" : Drawing(nodes).Svg(); }

}  // namespace qkvshare
