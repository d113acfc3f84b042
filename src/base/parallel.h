// Runs independent pieces of work on a few threads.
#pragma once

#include <cstddef>
#include <functional>

#include "qkvshare/status.h"

namespace qkvshare {

// Calls work(i) once for each i in [0, count), on at most `threads` threads, and waits. Pieces are taken in order as
// threads become free. Returns the error of the lowest i that failed (an
// exception counts as one); once one has failed, no further piece is started.
Status ParallelFor(size_t count, int threads, const std::function<Status(size_t)>& work);

}  // namespace qkvshare
