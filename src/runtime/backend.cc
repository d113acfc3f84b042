#include "runtime/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>

#include "llama.h"

namespace qkvshare {
namespace {

// llama.cpp's log callback is process-wide, so what it says is kept by thread.
thread_local std::string last_error;
thread_local bool last_line_was_error = false;

void KeepErrors(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_CONT ? !last_line_was_error : level < GGML_LOG_LEVEL_WARN) {
    last_line_was_error = false;
    return;
  }
  if (level != GGML_LOG_LEVEL_CONT) last_error.clear();
  last_line_was_error = true;
  last_error += text;
}

}  // namespace

void InitBackend() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(KeepErrors, nullptr);
    llama_backend_init();
  });
}

std::string TakeLastLlamaError() {
  std::string text = std::exchange(last_error, {});
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string LlamaErrorSuffix() {
  const std::string error = TakeLastLlamaError();
  return error.empty() ? "" : ": " + error;
}

Status DecodeStatus(int32_t result) {
  switch (result) {
    case 0: return {};
    case 1: return {StatusCode::kOutOfRange, "the context is full; use a larger -c"};
    case 2: return {StatusCode::kCancelled, "cancelled"};
    default:
      return {StatusCode::kInternal,
              fmt::format("llama.cpp failed to decode (error {}){}", result, LlamaErrorSuffix())};
  }
}

std::string LlamaVersion() { return llama_version(); }

std::string LlamaSystemInfo() {
  const std::string_view info = llama_print_system_info();
  const size_t end = info.find_last_not_of(" |");
  return std::string(info.substr(0, end + 1));
}

}  // namespace qkvshare
