#include "agents/topology.h"

#include <fmt/format.h>

namespace qkvshare {

std::string BudgetText(const Budget& budget) {
  return budget.max_bytes > 0 ? fmt::format("{} bytes", budget.max_bytes) : fmt::format("{} bits", budget.bits);
}

const char* PlacementName(Placement placement) { return placement == Placement::kWorker ? "worker" : "same"; }

}  // namespace qkvshare
