#include "agents/worker.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "agents/run_json.h"
#include "agents/shallow_json.h"
#include "runtime/model.h"

namespace qkvshare {
namespace {

using nlohmann::json;

std::string Line(const json& object) { return object.dump(-1, ' ', false, json::error_handler_t::replace); }

StatusCode CodeFromName(const std::string& name) {
  for (auto code = static_cast<int>(StatusCode::kInvalidArgument); code < static_cast<int>(StatusCode::kInternal);
       ++code) {
    if (name == StatusCodeName(static_cast<StatusCode>(code))) return static_cast<StatusCode>(code);
  }
  return StatusCode::kInternal;
}

// What a worker says, as it comes.
class WorkerOutput {
 public:
  explicit WorkerOutput(const TurnHooks& hooks) : hooks_(hooks) {}

  Status Take(const std::string& line) {
    try {
      return TakeObject(ParseShallow(line));
    } catch (const json::exception&) {
      return {StatusCode::kCorrupt, fmt::format("the worker said what no worker says: {:.80}", line)};
    }
  }
  std::optional<TurnRecord>& record() { return record_; }

 private:
  Status TakeObject(const json& object) {
    if (const auto progress = object.find("progress"); progress != object.end()) {
      if (hooks_.progress) {
        hooks_.progress(progress->at("what").get<std::string>().c_str(), progress->at("done"), progress->at("total"));
      }
      return {};
    }
    if (const auto text = object.find("text"); text != object.end()) {
      if (hooks_.text) hooks_.text(*text);
      return {};
    }
    if (const auto error = object.find("error"); error != object.end()) {
      return {CodeFromName(error->at("code")), error->at("message")};
    }
    QKV_ASSIGN_OR_RETURN(record_, TurnRecordFromJson(object.at("turn").dump()));
    return {};
  }

  const TurnHooks& hooks_;
  std::optional<TurnRecord> record_;
};

Result<TurnRecord> LoadAndRun(const std::string& input, const TurnHooks& hooks) {
  QKV_ASSIGN_OR_RETURN(const WorkerJob worker, WorkerJobFromJson(input));
  ModelOptions options;
  options.gpu_layers = worker.gpu_layers;
  if (hooks.progress) {
    options.progress = [&](float done) {
      hooks.progress("loading", static_cast<size_t>(done * 100), 100);
      return true;
    };
  }
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, Model::Load(worker.model, options));
  return RunTurn(*model, worker.job, hooks);
}

}  // namespace

Result<TurnRecord> RunWorkerTurn(const std::vector<std::string>& command, const WorkerJob& job,
                                 const WorkerLimits& limits, const TurnHooks& hooks) {
  WorkerOutput output(hooks);
  QKV_RETURN_IF_ERROR(RunWorkerProcess(command, WorkerJobToJson(job) + "\n", limits,
                                       [&](const std::string& line) { return output.Take(line); }));
  if (!output.record()) return Status(StatusCode::kCorrupt, "the worker ended without a result");
  output.record()->worker = true;
  return std::move(*output.record());
}

Status DoWorkerJob(const std::string& input, const std::function<void(const std::string& line)>& write_line,
                   const std::atomic<bool>* cancel) {
  TurnHooks hooks;
  hooks.progress = [&](const char* what, size_t done, size_t total) {
    write_line(Line({{"progress", {{"what", what}, {"done", done}, {"total", total}}}}));
  };
  hooks.text = [&](const std::string& text) { write_line(Line({{"text", text}})); };
  hooks.cancel = cancel;
  const Result<TurnRecord> record = LoadAndRun(input, hooks);
  if (!record) {
    const Status& status = record.status();
    write_line(Line({{"error", {{"code", StatusCodeName(status.code())}, {"message", status.message()}}}}));
    return status;
  }
  write_line(Line({{"turn", json::parse(TurnRecordToJson(*record))}}));
  return {};
}

}  // namespace qkvshare
