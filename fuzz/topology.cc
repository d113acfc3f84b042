// Reads arbitrary text as a topology file whose inputs are all there. What can be read and can run has turns that take
// only from earlier ones; what cannot is refused by file, line and column.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "agents/schedule.h"
#include "agents/topology_file.h"

namespace {

using namespace qkvshare;  // NOLINT(google-build-using-namespace)

void Require(bool condition) {
  if (!condition) std::abort();
}

void RequireRefusal(const Status& status) {
  Require(status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kOutOfRange);
  Require(status.message().starts_with("t.yaml:"));
}

void RequireOrder(const Topology& topology, const Schedule& schedule) {
  std::vector<bool> works(topology.agents.size(), false);
  for (size_t i = 0; i < schedule.turns.size(); ++i) {
    const Turn& turn = schedule.turns[i];
    works[turn.agent] = true;
    for (const size_t taken : turn.takes) {
      Require(taken < i && schedule.turns[taken].level < turn.level);
      const std::vector<size_t>& gives = schedule.turns[taken].gives;
      Require(std::find(gives.begin(), gives.end(), i) != gives.end());
    }
    Require(turn.takes.empty() == (turn.level == 0));
  }
  Require(std::find(works.begin(), works.end(), false) == works.end());
  for (const SegmentReader& reader : ReadersOf(topology, schedule, 0)) Require(reader.distance > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(data, data + size);
  const auto read = [](const std::string& path) { return Result<std::string>(path); };
  const Result<Topology> topology = ParseTopology(text, "t.yaml", read);
  if (!topology) {
    RequireRefusal(topology.status());
    return 0;
  }
  const Result<Schedule> schedule = MakeSchedule(*topology);
  if (!schedule) {
    RequireRefusal(schedule.status());
    return 0;
  }
  RequireOrder(*topology, *schedule);
  return 0;
}
