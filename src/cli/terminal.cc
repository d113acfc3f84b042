#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

namespace qkvshare::cli {
namespace {

// A signal handler can reach nothing else.
std::atomic<const std::function<void()>*> interrupt_call{nullptr};
volatile std::sig_atomic_t termination_requested = 0;

void OnInterrupt(int signal) {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  if (signal == SIGTERM) termination_requested = 1;
  if (const std::function<void()>* call = interrupt_call; call != nullptr) (*call)();
}

}  // namespace

int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return kSuccess;
    case StatusCode::kInvalidArgument: return kUsage;
    case StatusCode::kNotFound:
    case StatusCode::kIo: return kMissing;
    case StatusCode::kCorrupt:
    case StatusCode::kMismatch:
    case StatusCode::kUnsupported:
    case StatusCode::kNonFinite: return kRefused;
    case StatusCode::kOutOfRange: return kTooLong;
    case StatusCode::kCancelled: return kInterrupted;
    case StatusCode::kInternal: return kFailure;
  }
  return kFailure;
}

void PrintNote(const std::string& text) {
  std::fflush(stdout);
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

int ReportError(const Status& status) {
  PrintNote(fmt::format("error: {}\n", Printable(status.message())));  // it may hold names of files, and these anything
  return ExitCodeOf(status);
}

std::string Printable(std::string text) {
  const auto is_control = [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7F; };
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return text;
}

void PrintJson(const nlohmann::json& object) {
  PrintText(object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void PrintText(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

bool OutputIsLost() { return std::ferror(stdout) != 0; }

void IgnoreBrokenPipes() { std::signal(SIGPIPE, SIG_IGN); }

Status FlushOutput() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return {StatusCode::kIo, "cannot write to standard output: the output is not complete"};
}

ProgressLine::ProgressLine(std::string label) : label_(std::move(label)), enabled_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() { Done(); }

void ProgressLine::Draw(const std::string& text) {
  if (!enabled_) return;
  PrintNote("\r\033[K" + text);
  drawn_ = true;
}

void ProgressLine::Update(uint64_t done, uint64_t total, const char* unit) {
  constexpr int kWidth = 30;
  const int filled = total == 0 ? 0 : static_cast<int>(done * kWidth / total);
  Draw(fmt::format("{} [{:=<{}}{: <{}}] {}/{} {}", label_, "", filled, "", kWidth - filled, done, total, unit));
}

void ProgressLine::Note(const std::string& text) { Draw(label_ + text); }

void ProgressLine::Done() {
  if (drawn_) PrintNote("\r\033[K");
  drawn_ = false;
}

InterruptScope::InterruptScope(std::function<void()> on_interrupt)
    : on_interrupt_(std::move(on_interrupt)), outer_(interrupt_call.exchange(&on_interrupt_)) {
  interrupt_before_ = std::signal(SIGINT, OnInterrupt);
  terminate_before_ = std::signal(SIGTERM, OnInterrupt);
}

InterruptScope::~InterruptScope() {
  std::signal(SIGINT, interrupt_before_);
  std::signal(SIGTERM, terminate_before_);
  interrupt_call = outer_;
}

bool TerminationRequested() { return termination_requested != 0; }

}  // namespace qkvshare::cli
