#include "agents/loops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <string>
#include <utility>

namespace qkvshare {
namespace {

constexpr size_t kNone = SIZE_MAX;

using Links = std::vector<std::vector<size_t>>;  // of each node, where it leads

// The nodes in an order in which each comes after those that lead to it, and else by number. Those on a cycle, and what
// comes after them, are left out.
std::vector<size_t> Order(const Links& next) {
  std::vector<size_t> waits(next.size(), 0);
  for (const std::vector<size_t>& nodes : next) {
    for (const size_t node : nodes) ++waits[node];
  }
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  for (size_t node = 0; node < next.size(); ++node) {
    if (waits[node] == 0) ready.push(node);
  }
  std::vector<size_t> order;
  while (!ready.empty()) {
    order.push_back(ready.top());
    ready.pop();
    for (const size_t node : next[order.back()]) {
      if (--waits[node] == 0) ready.push(node);
    }
  }
  return order;
}

// Those that can be reached from one, itself among them.
std::vector<bool> Reach(const Links& next, size_t from) {
  std::vector<bool> reached(next.size(), false);
  std::vector<size_t> open = {from};
  reached[from] = true;
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    for (const size_t other : next[node]) {
      if (!reached[other]) open.push_back(other);
      reached[other] = true;
    }
  }
  return reached;
}

struct Loop {
  const Edge* back;
  std::vector<size_t> agents;  // of loops within it too
  size_t parent = kNone;       // the next bigger loop around it
};

class BlockFinder {
 public:
  explicit BlockFinder(const Topology& topology)
      : topology_(topology), next_(topology.agents.size()), before_(next_.size()), innermost_(next_.size(), kNone) {}

  Result<std::vector<Block>> Find() {
    QKV_RETURN_IF_ERROR(CheckEdges());
    QKV_RETURN_IF_ERROR(CheckCycles());
    QKV_RETURN_IF_ERROR(FindLoops());
    QKV_RETURN_IF_ERROR(NestLoops());
    std::vector<size_t> all(next_.size());
    std::iota(all.begin(), all.end(), 0);
    return BlocksOf(kNone, all);
  }

 private:
  Status Error(Place place, const std::string& what) const { return ErrorAt(topology_.file, place, what); }
  const std::string& name(size_t agent) const { return topology_.agents[agent].name; }

  // Takes down the edges that lead on.
  Status CheckEdges() {
    std::vector<bool> touched(next_.size(), next_.size() == 1);
    for (const Edge& edge : topology_.edges) {
      touched[edge.to] = true;
      for (const size_t sender : edge.from) {
        touched[sender] = true;
        if (edge.rounds > 0) continue;
        next_[sender].push_back(edge.to);
        before_[edge.to].push_back(sender);
      }
    }
    const auto stray = std::find(touched.begin(), touched.end(), false);
    if (stray == touched.end()) return {};
    const Agent& agent = topology_.agents[static_cast<size_t>(stray - touched.begin())];
    return Error(agent.place,
                 fmt::format("agent '{}' cannot be reached, and hands to no one; give it an edge, or leave "
                             "it out",
                             agent.name));
  }

  Status CheckCycles() const {
    const std::vector<size_t> order = Order(next_);
    if (order.size() == next_.size()) return {};
    std::vector<bool> stuck(next_.size(), true);
    for (const size_t agent : order) stuck[agent] = false;
    // Each that is stuck waits for another that is: going back leads onto a cycle.
    const auto waits_for = [&](size_t agent) {
      return *std::find_if(before_[agent].begin(), before_[agent].end(), [&](size_t sender) { return stuck[sender]; });
    };
    auto on_cycle = static_cast<size_t>(std::find(stuck.begin(), stuck.end(), true) - stuck.begin());
    for (size_t i = 0; i < next_.size(); ++i) on_cycle = waits_for(on_cycle);
    std::vector<size_t> cycle = {on_cycle};
    while (waits_for(cycle.back()) != on_cycle) cycle.push_back(waits_for(cycle.back()));
    std::reverse(cycle.begin(), cycle.end());
    const Edge& last = TurnToLastEdge(&cycle);
    return Error(last.place,
                 fmt::format("{}{} -> {} is a cycle without an end; give the edge that leads back 'rounds', as "
                             "often as the loop is to run",
                             order.empty() ? "no agent can start: " : "", NamesOf(cycle), name(cycle[0])));
  }

  std::string NamesOf(const std::vector<size_t>& agents) const {
    constexpr size_t kMost = 8;
    std::string names = name(agents[0]);
    for (size_t i = 1; i < std::min(agents.size(), kMost); ++i) names += " -> " + name(agents[i]);
    return agents.size() > kMost ? names + " -> ... -> " + name(agents.back()) : names;
  }

  // Of the edges of a cycle the last one in the file, the likeliest to be meant to lead back. Afterwards it leads from
  // the last agent of the cycle to the first one.
  const Edge& TurnToLastEdge(std::vector<size_t>* cycle) const {
    const Edge* last = nullptr;
    size_t start = 0;
    for (size_t i = 0; i < cycle->size(); ++i) {
      const size_t receiver = (*cycle)[(i + 1) % cycle->size()];
      for (const Edge& edge : topology_.edges) {
        const bool links = edge.rounds == 0 && edge.to == receiver &&
                           std::find(edge.from.begin(), edge.from.end(), (*cycle)[i]) != edge.from.end();
        if (!links || (last != nullptr && last > &edge)) continue;
        last = &edge;
        start = (i + 1) % cycle->size();
      }
    }
    std::rotate(cycle->begin(), cycle->begin() + static_cast<std::ptrdiff_t>(start), cycle->end());
    return *last;
  }

  Status FindLoops() {
    for (const Edge& edge : topology_.edges) {
      if (edge.rounds == 0) continue;
      const size_t first = edge.to;
      const size_t last = edge.from[0];
      if (loops_.size() == kMaxLoops)
        return Error(edge.place, fmt::format("more than {} edges with 'rounds'", kMaxLoops));
      const std::vector<bool> after = Reach(next_, first);
      if (!after[last]) {
        return Error(edge.place,
                     fmt::format("'rounds' is of an edge that leads back, but no way leads from '{}' to '{}'; "
                                 "leave it out",
                                 name(first), name(last)));
      }
      const std::vector<bool> ahead = Reach(before_, last);
      Loop& loop = loops_.emplace_back(Loop{&edge, {}});
      for (size_t agent = 0; agent < next_.size(); ++agent) {
        if (after[agent] && ahead[agent]) loop.agents.push_back(agent);
      }
    }
    std::sort(loops_.begin(), loops_.end(), [](const Loop& a, const Loop& b) {
      return std::pair(a.agents.size(), a.back) < std::pair(b.agents.size(), b.back);  // edges lie in one list
    });
    return {};
  }

  // From the smallest loop on: each is in another one as a whole, or apart from it.
  Status NestLoops() {
    std::vector<size_t> outermost(next_.size(), kNone);  // loop of each agent so far
    for (size_t i = 0; i < loops_.size(); ++i) {
      std::vector<size_t> inside(i, 0);  // agents of each loop that are in this one
      for (const size_t agent : loops_[i].agents) {
        if (outermost[agent] != kNone) ++inside[outermost[agent]];
        if (innermost_[agent] == kNone) innermost_[agent] = i;
        outermost[agent] = i;
      }
      for (size_t other = 0; other < i; ++other) {
        if (inside[other] == 0) continue;
        if (inside[other] < loops_[other].agents.size()) {
          const auto [first, second] = std::minmax(loops_[i].back, loops_[other].back);  // in the file
          return Error(second->place, fmt::format("this loop and that of line {} overlap, and neither holds the other; "
                                                  "lead one of them back further, or less far",
                                                  first->place.line));
        }
        loops_[other].parent = i;
      }
    }
    return {};
  }

  // The blocks of a loop, or of all agents: those that are directly in it, and the loops that are.
  Result<std::vector<Block>> BlocksOf(size_t loop, const std::vector<size_t>& agents) const {
    const std::vector<size_t> units = UnitsOf(loop, agents);  // of each agent, by which it is known here
    std::vector<size_t> number(next_.size() + loops_.size(), kNone);
    std::vector<size_t> distinct;
    for (const size_t agent : agents) {
      if (number[units[agent]] != kNone) continue;
      number[units[agent]] = distinct.size();
      distinct.push_back(units[agent]);
    }
    Links next(distinct.size());
    for (const size_t agent : agents) {
      for (const size_t other : next_[agent]) {
        if (units[other] == kNone || units[other] == units[agent]) continue;
        next[number[units[agent]]].push_back(number[units[other]]);
      }
    }
    const std::vector<size_t> order = Order(next);
    if (order.size() < distinct.size()) return LoopsWait(order, distinct);
    std::vector<Block> blocks;
    for (const size_t index : order) {
      const size_t unit = distinct[index];
      if (unit < next_.size()) {
        blocks.push_back({unit});
        continue;
      }
      const Loop& inner = loops_[unit - next_.size()];
      Block& block = blocks.emplace_back(Block{0, inner.back});
      QKV_ASSIGN_OR_RETURN(block.body, BlocksOf(unit - next_.size(), inner.agents));
    }
    return blocks;
  }

  // Of each of the agents itself, or the outermost loop around it within this one, numbered after the agents; kNone for
  // others.
  std::vector<size_t> UnitsOf(size_t loop, const std::vector<size_t>& agents) const {
    std::vector<size_t> units(next_.size(), kNone);
    for (const size_t agent : agents) {
      units[agent] = agent;
      for (size_t around = innermost_[agent]; around != loop && around != kNone; around = loops_[around].parent) {
        units[agent] = next_.size() + around;
      }
    }
    return units;
  }

  // Edges lead from inside of each to inside of the other.
  Status LoopsWait(const std::vector<size_t>& order, const std::vector<size_t>& distinct) const {
    std::vector<bool> runs(distinct.size(), false);
    for (const size_t index : order) runs[index] = true;
    const Edge* last = nullptr;
    for (size_t i = 0; i < distinct.size(); ++i) {
      if (runs[i] || distinct[i] < next_.size()) continue;
      const Edge* back = loops_[distinct[i] - next_.size()].back;
      last = last == nullptr ? back : std::max(last, back);
    }
    return Error(last->place,
                 "this loop and others wait for each other's cards, so that none can run; take out an edge "
                 "between them");
  }

  const Topology& topology_;
  Links next_, before_;  // edges that lead on
  std::vector<Loop> loops_;
  std::vector<size_t> innermost_;  // loop around each agent
};

}  // namespace

Result<std::vector<Block>> FindBlocks(const Topology& topology) { return BlockFinder(topology).Find(); }

}  // namespace qkvshare
