// llama.cpp's process-wide parts: start-up and its log.
#pragma once

#include <cstdint>
#include <string>

#include "qkvshare/status.h"

namespace qkvshare {

// Starts llama.cpp's backends once a process and takes over its log: errors and warnings are kept for
// TakeLastLlamaError, the rest is dropped. Thread-safe, cheap after the first call. Not for an application that has
// started llama.cpp itself: its log stays its own.
void InitBackend();

// llama.cpp's last error or warning of this thread since the last call, as one line; empty where there is none.
std::string TakeLastLlamaError();

// ": " and the last error, or nothing: the end of a message about a failed llama.cpp call.
std::string LlamaErrorSuffix();

// What llama_decode's result means: 0 is ok.
Status DecodeStatus(int32_t result);

// Version of the llama.cpp that runs.
std::string LlamaVersion();

// What it was built for, as it says itself: "CPU : SSE3 = 1 | AVX2 = 1 | ...". After InitBackend.
std::string LlamaSystemInfo();

}  // namespace qkvshare
