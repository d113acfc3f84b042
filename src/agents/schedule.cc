#include "agents/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "agents/loops.h"

namespace qkvshare {
namespace {

constexpr size_t kNone = SIZE_MAX;

// Goes through the blocks, loops as often as they are to run.
class Unroller {
 public:
  explicit Unroller(const Topology& topology) : topology_(topology), incoming_(topology.agents.size()) {
    for (const Edge& edge : topology.edges) incoming_[edge.to].push_back(&edge);
    last_turn_.assign(topology.agents.size(), kNone);
  }

  Status Run(const std::vector<Block>& blocks) {
    for (const Block& block : blocks) {
      if (block.back == nullptr) {
        AddTurn(block.agent);
        continue;
      }
      for (uint32_t round = 1; round <= block.back->rounds; ++round) {
        round_[block.back] = round;
        QKV_RETURN_IF_ERROR(Run(block.body));
        if (turns_.size() <= kMaxTurns) continue;
        return ErrorAt(topology_.file, block.back->place,
                       fmt::format("with this loop there are more than {} turns; lower 'rounds'", kMaxTurns),
                       StatusCode::kOutOfRange);
      }
    }
    return {};
  }

  std::vector<Turn> Take() { return std::move(turns_); }

 private:
  void AddTurn(size_t agent) {
    Turn turn;
    turn.agent = agent;
    for (const Edge* edge : incoming_[agent]) {
      if (edge->rounds > 0 && round_[edge] == 1) continue;  // nothing leads back yet
      for (const size_t sender : edge->from) turn.takes.push_back(last_turn_[sender]);
    }
    for (const size_t taken : turn.takes) turn.level = std::max(turn.level, turns_[taken].level + 1);
    last_turn_[agent] = turns_.size();
    turns_.push_back(std::move(turn));
  }

  const Topology& topology_;
  std::vector<std::vector<const Edge*>> incoming_;   // of each agent, as in the file
  std::vector<size_t> last_turn_;                    // of each agent
  std::unordered_map<const Edge*, uint32_t> round_;  // of each loop, by its edge back
  std::vector<Turn> turns_;
};

std::vector<Turn> Sorted(std::vector<Turn> turns) {
  std::vector<size_t> order(turns.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(turns[a].level, turns[a].agent, a) < std::tuple(turns[b].level, turns[b].agent, b);
  });
  std::vector<size_t> place(turns.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  std::vector<Turn> sorted;
  for (const size_t turn : order) {
    sorted.push_back(std::move(turns[turn]));
    for (size_t& taken : sorted.back().takes) {
      taken = place[taken];
      sorted[taken].gives.push_back(sorted.size() - 1);
    }
  }
  return sorted;
}

void NameTurns(const Topology& topology, std::vector<Turn>* turns) {
  std::vector<size_t> count(topology.agents.size(), 0);
  for (const Turn& turn : *turns) ++count[turn.agent];
  std::vector<size_t> number(count.size(), 0);
  for (Turn& turn : *turns) {
    turn.name = topology.agents[turn.agent].name;
    if (count[turn.agent] > 1) turn.name += fmt::format(".{}", ++number[turn.agent]);
  }
}

}  // namespace

Result<Schedule> MakeSchedule(const Topology& topology) {
  QKV_ASSIGN_OR_RETURN(const std::vector<Block> blocks, FindBlocks(topology));
  Unroller unroller(topology);
  QKV_RETURN_IF_ERROR(unroller.Run(blocks));
  Schedule schedule{Sorted(unroller.Take())};
  NameTurns(topology, &schedule.turns);
  return schedule;
}

std::vector<SegmentReader> ReadersOf(const Topology& topology, const Schedule& schedule, size_t turn) {
  std::vector<SegmentReader> readers;
  std::vector<bool> seen(schedule.turns.size(), false);
  std::vector<bool> listed(topology.agents.size(), false);
  std::vector<size_t> open = {turn};
  for (uint32_t distance = 1; !open.empty(); ++distance) {
    std::vector<size_t> reached;
    for (const size_t from : open) {
      const Agent& sender = topology.agents[schedule.turns[from].agent];
      if (from != turn && !sender.shares.empty()) continue;
      for (const size_t to : schedule.turns[from].gives) {
        if (!seen[to]) reached.push_back(to);
        seen[to] = true;
      }
    }
    std::sort(reached.begin(), reached.end());
    for (const size_t to : reached) {
      const size_t agent = schedule.turns[to].agent;
      if (!listed[agent]) readers.push_back({topology.agents[agent].name, distance});
      listed[agent] = true;
    }
    open = std::move(reached);
  }
  return readers;
}

}  // namespace qkvshare
