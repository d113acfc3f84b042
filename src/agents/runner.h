// Runs a topology: one turn after the other, here or in workers, into a folder from which it can go on.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "agents/run_record.h"
#include "agents/run_records.h"
#include "agents/schedule.h"
#include "agents/topology.h"
#include "agents/turn.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

struct RunOptions {
  std::string folder;
  bool resume = false;                      // take what is done there; else the folder must be new or empty
  std::string anchors_folder;               // of an earlier run of the same topology; empty: none
  SessionOptions session;                   // of each turn; context 0: as the topology says
  int parallel = 1;                         // workers at a time
  std::vector<std::string> worker_command;  // DoWorkerJob of its standard input
  std::string model_path;                   // for workers, as gpu_layers
  int gpu_layers = 0;
};

// Called by one thread at a time. turn: of the schedule. All may be empty.
struct RunHooks {
  std::function<void(size_t turn, const std::string& note)> start;  // note: why it is done again, or empty
  std::function<void(size_t turn, const char* what, size_t done, size_t total)> progress;
  std::function<void(size_t turn, const TurnRecord&)> done;
};

// References topology, schedule and model, which must outlive it. Runs once.
class Runner {
 public:
  Runner(const Topology& topology, const Schedule& schedule, const Model& model, RunOptions options, RunHooks hooks);

  // Level by level; of one level, first the turns of this process, then the workers. The first turn that fails ends
  // the run, with its agent and the turns that it takes from in the message: what is done stays in the folder, and the
  // workers of its level that are at work are waited for. Errors: RunRecords::Open, RunTurn, RunWorkerTurn,
  // CheckTurnCards; kCancelled.
  Status Run();
  // Of the turns that are done: all after Run has succeeded.
  RunRecord Record() const;
  // From any thread or signal handler: the turns at work are cut short, and Run fails with kCancelled.
  void Cancel() { cancelled_ = true; }

 private:
  Status Check();
  TurnJob JobOf(size_t turn) const;
  Status RunLevel(size_t first, size_t end);
  Status RunOne(size_t turn);
  Result<TurnRecord> Work(size_t turn, const TurnJob& job);
  TurnHooks HooksOf(size_t turn);
  Status Named(const Status& status, size_t turn) const;

  const Topology& topology_;
  const Schedule& schedule_;
  const Model& model_;
  const RunOptions options_;
  const RunHooks hooks_;
  std::mutex hooks_mutex_;
  std::unique_ptr<RunRecords> kept_;
  std::vector<std::optional<TurnRecord>> records_;  // of each turn
  std::string anchors_id_;
  int64_t total_us_ = 0;
  std::atomic<bool> cancelled_{false};
};

}  // namespace qkvshare
