// qkvshare agents: topology files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "agents/schedule.h"
#include "agents/topology_file.h"
#include "cli/agents.h"
#include "cli/commands.h"
#include "cli/terminal.h"

namespace qkvshare::cli {
namespace {

struct AgentsFlags {
  std::string file;
  bool json = false;
};

std::string Joined(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += (joined.empty() ? "" : ", ") + text;
  return joined.empty() ? "-" : joined;
}

std::vector<std::string> NamesOf(const Schedule& schedule, const std::vector<size_t>& turns) {
  std::vector<std::string> names;
  for (const size_t turn : turns) names.push_back(schedule.turns[turn].name);
  return names;
}

nlohmann::json ScheduleJson(const Topology& topology, const Schedule& schedule) {
  nlohmann::json turns = nlohmann::json::array();
  for (size_t i = 0; i < schedule.turns.size(); ++i) {
    const Turn& turn = schedule.turns[i];
    const Agent& agent = topology.agents[turn.agent];
    nlohmann::json readers = nlohmann::json::array();
    for (const SegmentReader& reader : ReadersOf(topology, schedule, i)) {
      readers.push_back({{"agent", reader.agent}, {"distance", reader.distance}});
    }
    nlohmann::json object = {{"turn", turn.name},
                             {"agent", agent.name},
                             {"level", turn.level},
                             {"takes", NamesOf(schedule, turn.takes)},
                             {"gives", NamesOf(schedule, turn.gives)},
                             {"shares", agent.shares},
                             {"readers", readers},
                             {"policy", PolicyName(agent.policy)},
                             {"predict", agent.predict},
                             {"placement", PlacementName(agent.placement)}};
    if (agent.budget.max_bytes > 0) {
      object["max_bytes"] = agent.budget.max_bytes;
    } else {
      object["bits"] = agent.budget.bits;
    }
    turns.push_back(std::move(object));
  }
  return {{"file", topology.file},
          {"model", topology.model},
          {"context", topology.context},
          {"agents", topology.agents.size()},
          {"turns", turns}};
}

void PrintSchedule(const Topology& topology, const Schedule& schedule) {
  using Row = std::array<std::string, 6>;
  std::vector<Row> rows = {{"turn", "agent", "takes from", "gives to", "budget", "placement"}};
  for (const Turn& turn : schedule.turns) {
    const Agent& agent = topology.agents[turn.agent];
    rows.push_back({turn.name, agent.name, Joined(NamesOf(schedule, turn.takes)), Joined(NamesOf(schedule, turn.gives)),
                    BudgetText(agent.budget), PlacementName(agent.placement)});
  }
  std::array<size_t, 6> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i + 1 < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    fmt::print("{}{}\n", line, row.back());
  }
}

Status Check(const AgentsFlags& flags) {
  QKV_ASSIGN_OR_RETURN(const Topology topology, ReadTopology(flags.file));
  QKV_ASSIGN_OR_RETURN(const Schedule schedule, MakeSchedule(topology));
  if (flags.json) {
    PrintJson(ScheduleJson(topology, schedule));
  } else {
    PrintSchedule(topology, schedule);
  }
  return {};
}

}  // namespace

Command AddAgents(CLI::App* app) {
  auto flags = std::make_shared<AgentsFlags>();
  app->require_subcommand(1);
  CLI::App* check = app->add_subcommand("check", "Check a topology file and show the turns in their order");
  check->add_option("file", flags->file, "The topology: YAML or JSON, see docs/agents.md")->required();
  check->add_flag("--json", flags->json, "Report as JSON");
  check->footer("Example:\n  qkvshare agents check examples/agents/map_reduce.yaml");
  CLI::App* run = app->add_subcommand("run", "Run a topology");
  const Command run_command = AddAgentsRun(run);
  // What a run starts for agents with `placement: worker`: no command for people.
  CLI::App* worker = app->add_subcommand("worker", "")->group("");
  app->footer("Example:\n  qkvshare agents run examples/agents/map_reduce.yaml --html map_reduce.html");
  return [flags, run, run_command, worker] {
    if (run->parsed()) return run_command();
    if (worker->parsed()) return RunAgentsWorker();
    const Status status = Check(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
