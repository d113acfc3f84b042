// A turn's job as JSON: what a worker is told, and what a run that is resumed goes by.
#pragma once

#include <string>

#include "agents/turn.h"
#include "qkvshare/status.h"

namespace qkvshare {

// A job for another process, with the model to load.
struct WorkerJob {
  std::string model;  // file
  int gpu_layers = 0;
  TurnJob job;
};

// One line.
std::string WorkerJobToJson(const WorkerJob& job);
// kInvalidArgument names the field.
Result<WorkerJob> WorkerJobFromJson(const std::string& text);

// All that the turn's result follows from besides the model: equal jobs need not be done again.
std::string JobKeyText(const TurnJob& job);

}  // namespace qkvshare
