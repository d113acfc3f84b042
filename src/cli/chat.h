// run --interactive: a conversation on the terminal or through a pipe, from scratch or after a card.
#pragma once

#include "cli/run.h"

namespace qkvshare::cli {

// Each line of standard input is a turn of the user; answers go to standard output, all else to standard error. Ctrl-C
// stops an answer, or leaves where none is being made. Returns the exit code: of the last turn that was refused, if
// any.
int RunChat(const RunFlags& flags);

}  // namespace qkvshare::cli
