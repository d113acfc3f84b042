// How fast this machine reads memory.
#pragma once

namespace qkvshare {

// Bytes a second that `threads` threads (0: one a core) read together from memory, in order: the best of several sums
// over a buffer that no cache holds. 0 where there is no memory for the buffer. Takes some tenths of a second.
double MeasureReadBandwidth(int threads);

}  // namespace qkvshare
