// A program at work for us in a process of its own: it is given one text, and says what it does line by line.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "qkvshare/status.h"

namespace qkvshare {

struct WorkerLimits {
  std::chrono::milliseconds silence{600'000};  // without a byte of output; what on_line takes does not count
  std::chrono::milliseconds grace{1000};       // from SIGTERM to SIGKILL, where it is ended
  size_t line_bytes = size_t{64} << 20;        // of a line of its output, at most
  const std::atomic<bool>* cancel = nullptr;   // ends it once this is true
};

// Runs argv[0] (a path, or a name in $PATH), writes `input` to its standard input, which ends there, and hands each
// line of its standard output to on_line, without the line end. Returns when it has ended, with all processes of its
// group: the group is its own, so that Ctrl-C reaches the caller alone. It inherits the environment, and no open file.
//
// OK if it exits with 0, whether it has read all of the input or not. Otherwise the message says how it ended, with the
// last line of its standard error:
// kNotFound, kIo (it cannot be started), kInternal (exit code, signal, silence), kOutOfRange (a line that is too long),
// kCancelled, or the error of on_line, which ends it.
//
// Blocks. Thread-safe, and no signal handler of this process is changed or needed; SIGCHLD must not be ignored.
Status RunWorkerProcess(const std::vector<std::string>& argv, const std::string& input, const WorkerLimits& limits,
                        const std::function<Status(const std::string& line)>& on_line);

}  // namespace qkvshare
