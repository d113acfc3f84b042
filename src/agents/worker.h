// A turn in a process of its own: both ends of the pipe. One JSON object goes in; progress, and the record or what went
// wrong, come out, one object a line.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "agents/job_json.h"
#include "agents/run_record.h"
#include "agents/turn.h"
#include "agents/worker_process.h"
#include "qkvshare/status.h"

namespace qkvshare {

// The run's end. command: what to start, as RunWorkerProcess. The record is as the worker gave it: CheckTurnCards.
// Errors: those of the worker's RunTurn, of RunWorkerProcess, and kCorrupt for output that is none of a worker's.
Result<TurnRecord> RunWorkerTurn(const std::vector<std::string>& command, const WorkerJob& job,
                                 const WorkerLimits& limits, const TurnHooks& hooks);

// The worker's end: does the job that `input` describes. All it says goes to write_line, errors too.
// cancel: as TurnHooks.
Status DoWorkerJob(const std::string& input, const std::function<void(const std::string& line)>& write_line,
                   const std::atomic<bool>* cancel);

}  // namespace qkvshare
