// Times of the stages of some work, over several runs of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "eval/median.h"

namespace qkvshare {

struct Stage {
  std::string name;
  int64_t us = 0;
};

// Of one run, in order.
using Stages = std::vector<Stage>;

// Of several runs of the same work.
struct Spread {
  int64_t median_us = 0, least_us = 0, most_us = 0;
};

struct StageSpread {
  std::string name;
  Spread time;
};

inline int64_t TotalUs(const Stages& stages) {
  int64_t us = 0;
  for (const Stage& stage : stages) us += stage.us;
  return us;
}

// us: not empty.
inline Spread SpreadOf(std::vector<int64_t> us) {
  const auto [least, most] = std::minmax_element(us.begin(), us.end());
  const int64_t low = *least, high = *most;
  return {Median(std::move(us)), low, high};
}

// Of each stage. runs: not empty, with the same stages each.
inline std::vector<StageSpread> SpreadsOf(const std::vector<Stages>& runs) {
  std::vector<StageSpread> spreads;
  for (size_t i = 0; i < runs.front().size(); ++i) {
    std::vector<int64_t> us;
    for (const Stages& run : runs) us.push_back(run[i].us);
    spreads.push_back({runs.front()[i].name, SpreadOf(std::move(us))});
  }
  return spreads;
}

}  // namespace qkvshare
