// llama.cpp's process-wide parts: start-up and its log.
#pragma once

#include <string>

namespace qkvshare {

// Starts llama.cpp's backends once a process and takes over its log: errors and warnings are kept for
// TakeLastLlamaError,
// the rest is dropped. Thread-safe, cheap after the first call.
void InitBackend();

// llama.cpp's last error or warning of this thread since the last call, as one line; empty where there is none.
std::string TakeLastLlamaError();

// ": " and the last error, or nothing: the end of a message about a failed llama.cpp call.
std::string LlamaErrorSuffix();

// Version of the llama.cpp that runs.
std::string LlamaVersion();

}  // namespace qkvshare
