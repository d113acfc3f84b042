// Subcommands of `qkvshare agents` that have files of their own.
#pragma once

#include "cli/commands.h"

namespace qkvshare::cli {

Command AddAgentsRun(CLI::App* app);
// The job is on standard input, and standard output is for the run that started it. Returns the exit code.
int RunAgentsWorker();

}  // namespace qkvshare::cli
