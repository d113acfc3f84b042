// Cases of `qkvshare eval memory` in processes of their own.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "eval/memory_case.h"
#include "qkvshare/status.h"

namespace qkvshare::cli {

// As RunMemoryCases asks for. command: what to start, with RunMemoryProcess behind it. kCancelled where cancel became
// true; the error of the first process that fails ends the others.
Result<std::vector<MemoryCaseResult>> RunMemoryProcesses(const std::vector<std::string>& command,
                                                         const MemoryCase& memory_case, size_t processes,
                                                         const std::atomic<bool>* cancel);

// The process's end: reads a case from standard input, writes its result as one line to standard output, and keeps what
// it has until the one who started it lets it go. Returns its exit code.
int RunMemoryProcess();

}  // namespace qkvshare::cli
