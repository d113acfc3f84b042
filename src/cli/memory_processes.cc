#include "cli/memory_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "agents/worker_process.h"
#include "base/file.h"
#include "cli/terminal.h"
#include "runtime/model.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

namespace qkvshare::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kPollInterval{20};
constexpr size_t kMaxInputBytes = size_t{64} << 20;

// A file that is locked until the processes may go: they wait for the lock, and get it too where this one ends.
class Gate {
 public:
  Gate() = default;
  ~Gate() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(path_.c_str());
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  Status Shut() {
    path_ = (std::filesystem::temp_directory_path() / "qkvshare-memory-XXXXXX").string();
    fd_ = mkostemp(path_.data(), O_CLOEXEC);
    if (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) == 0) return {};
    return {StatusCode::kIo, fmt::format("cannot lock {}: {}", path_, std::system_category().message(errno))};
  }
  void Open() const { flock(fd_, LOCK_UN); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
};

class Processes {
 public:
  Processes(const MemoryCase& memory_case, size_t count, const std::atomic<bool>* cancel)
      : case_(memory_case), cancel_(cancel), results_(count), pids_(count), statuses_(count) {}

  Result<std::vector<MemoryCaseResult>> Run(const std::vector<std::string>& command) {
    QKV_RETURN_IF_ERROR(gate_.Shut());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < results_.size(); ++i) threads.emplace_back([this, i, &command] { RunOne(i, command); });
    while (ended_.load() < results_.size()) {
      if (cancel_ != nullptr && cancel_->load()) stop_ = true;
      std::this_thread::sleep_for(kPollInterval);
    }
    for (std::thread& thread : threads) thread.join();
    if (cancel_ != nullptr && cancel_->load()) return Status(StatusCode::kCancelled, "cancelled");
    for (const Status& status : statuses_) {
      if (!status.ok() && status.code() != StatusCode::kCancelled) return status;  // the others were ended by it
    }
    if (ready_ < results_.size())
      return Status(StatusCode::kInternal, "a process that measures memory has ended without a result");
    return results_;
  }

 private:
  void RunOne(size_t index, const std::vector<std::string>& command) {
    Json input = MemoryCaseJson(case_);
    input["gate"] = gate_.path();
    WorkerLimits limits;
    limits.cancel = &stop_;
    statuses_[index] =
        RunWorkerProcess(command, input.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace), limits,
                         [&](const std::string& line) { return Take(index, line); });
    if (!statuses_[index].ok()) stop_ = true;
    ++ended_;
  }

  // The last one that is ready lets all go, after a look at what they have together.
  Status Take(size_t index, const std::string& line) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    QKV_ASSIGN_OR_RETURN(const MemoryCaseResult result, ParseMemoryCaseResult(json));
    const std::lock_guard lock(mutex_);
    results_[index] = result;
    pids_[index] = json.value("process", 0);
    if (++ready_ < results_.size()) return {};
    for (size_t i = 0; i < results_.size(); ++i) {
      QKV_ASSIGN_OR_RETURN(const MemoryUse use, ReadMemoryUse(pids_[i]));
      results_[i].held.proportional_bytes = use.proportional_bytes;
    }
    gate_.Open();
    return {};
  }

  const MemoryCase& case_;
  const std::atomic<bool>* cancel_;
  std::atomic<bool> stop_{false};
  std::atomic<size_t> ended_{0};
  Gate gate_;
  std::mutex mutex_;
  size_t ready_ = 0;
  std::vector<MemoryCaseResult> results_;
  std::vector<pid_t> pids_;
  std::vector<Status> statuses_;
};

// Until the gate is open, or a signal comes.
void WaitFor(const std::string& gate) {
  const int fd = open(gate.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  flock(fd, LOCK_SH);
  close(fd);
}

Status RunCase() {
  QKV_ASSIGN_OR_RETURN(const std::string input, ReadText("-", kMaxInputBytes));
  const Json json = Json::parse(input, nullptr, /*allow_exceptions=*/false);
  QKV_ASSIGN_OR_RETURN(const MemoryCase memory_case, ParseMemoryCase(json));
  const std::string gate = json.value("gate", "");
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, Model::Load(memory_case.model, {}));
  return RunMemoryCase(*model, memory_case, [&](const MemoryCaseResult& result) {
    Json line = MemoryCaseResultJson(result);
    line["process"] = getpid();
    PrintText(line.dump() + "\n");
    WaitFor(gate);
    return Status();
  });
}

}  // namespace

Result<std::vector<MemoryCaseResult>> RunMemoryProcesses(const std::vector<std::string>& command,
                                                         const MemoryCase& memory_case, size_t processes,
                                                         const std::atomic<bool>* cancel) {
  return Processes(memory_case, processes, cancel).Run(command);
}

int RunMemoryProcess() {
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // a run that is killed takes its processes with it
#endif
  const Status status = RunCase();
  return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
}

}  // namespace qkvshare::cli
