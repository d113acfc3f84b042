// What a command says and how: errors, progress, exit codes.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/amounts.h"
#include "qkvshare/status.h"

namespace qkvshare::cli {

// Documented in README.md and in --help.
enum ExitCode : int {
  kSuccess = 0,
  kFailure = 1,  // anything else
  kUsage = 2,    // wrong flags or input
  kRefused = 3,  // a card, model or prompt that was read but cannot be used: corrupt, of another model, unsupported
  kMissing = 4,  // a file is missing, or reading or writing failed
  kTooLong = 5,  // does not fit the context or a limit
  kInterrupted = 130,
};
int ExitCodeOf(const Status& status);

// To standard error, after what was printed before. Where that cannot be written there is no one to tell.
void PrintNote(const std::string& text);

// "error: ..." on standard error, as one line. Returns the exit code.
int ReportError(const Status& status);

// Text from a file or another agent, fit for a terminal: control characters become '?'.
std::string Printable(std::string text);

// Indented, on standard output; bytes that are not UTF-8 (names of files, text cut inside a character) are replaced.
void PrintJson(const nlohmann::json& object);

// To standard output, at once. Where that fails OutputIsLost says so, and FlushOutput in the end.
void PrintText(const std::string& text);
bool OutputIsLost();

// From here on, a reader of standard output that goes away is an error of writing instead of the end of the process.
void IgnoreBrokenPipes();

// Flushes standard output; kIo where something of it could not be written.
Status FlushOutput();

// A progress line on standard error: on a terminal only, so that logs stay quiet. Erased by Done or destruction.
class ProgressLine {
 public:
  explicit ProgressLine(std::string label);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void Update(uint64_t done, uint64_t total, const char* unit);
  // One note without numbers.
  void Note(const std::string& text);
  void Done();

 private:
  void Draw(const std::string& text);
  std::string label_;
  bool enabled_;
  bool drawn_ = false;
};

// While it lives, Ctrl-C and SIGTERM call `on_interrupt` (async-signal-safe) instead of ending the process; a second
// one ends it.
class InterruptScope {
 public:
  explicit InterruptScope(std::function<void()> on_interrupt);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  std::function<void()> on_interrupt_;
  const std::function<void()>* outer_;
  void (*interrupt_before_)(int);
  void (*terminate_before_)(int);
};

// Whether SIGTERM came within an InterruptScope: then the command is to end, not only what it is doing.
bool TerminationRequested();

}  // namespace qkvshare::cli
