// Subcommands of `qkvshare eval`.
#pragma once

#include "cli/commands.h"

namespace qkvshare::cli {

Command AddEvalSpeed(CLI::App* eval);
Command AddEvalJoin(CLI::App* eval);
Command AddEvalChain(CLI::App* eval);
Command AddEvalHops(CLI::App* eval);
Command AddEvalFidelity(CLI::App* eval);
Command AddEvalTtft(CLI::App* eval);
Command AddEvalMemory(CLI::App* eval);
Command AddEvalSensitivity(CLI::App* eval);

}  // namespace qkvshare::cli
