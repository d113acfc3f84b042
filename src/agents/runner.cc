#include "agents/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "agents/earlier_anchors.h"
#include "agents/hand_over.h"
#include "agents/worker.h"
#include "base/parallel.h"
#include "base/stopwatch.h"
#include "runtime/prompt.h"

namespace qkvshare {

Runner::Runner(const Topology& topology, const Schedule& schedule, const Model& model, RunOptions options,
               RunHooks hooks)
    : topology_(topology),
      schedule_(schedule),
      model_(model),
      options_(std::move(options)),
      hooks_(std::move(hooks)),
      records_(schedule.turns.size()) {}

Status Runner::Run() {
  Stopwatch watch;
  QKV_RETURN_IF_ERROR(Check());
  QKV_ASSIGN_OR_RETURN(kept_, RunRecords::Open(options_.folder, options_.resume));
  Status status;
  const std::vector<Turn>& turns = schedule_.turns;
  for (size_t first = 0; first < turns.size() && status.ok();) {
    size_t end = first;
    while (end < turns.size() && turns[end].level == turns[first].level) ++end;
    status = RunLevel(first, end);
    first = end;
  }
  kept_.reset();  // others may go on with it
  total_us_ = watch.LapUs();
  return status;
}

// What can be known to be wrong before there is a folder.
Status Runner::Check() {
  if (!model_.ApplyChatTemplate({{"user", "x"}}, true)) {
    return {StatusCode::kUnsupported,
            "agents speak through the model's chat template, which this model does not have or "
            "which cannot be read; use another model"};
  }
  const auto is_worker = [](const Agent& agent) { return agent.placement == Placement::kWorker; };
  if (std::any_of(topology_.agents.begin(), topology_.agents.end(), is_worker)) {
    for (const std::string& path : {options_.folder, options_.model_path, options_.anchors_folder}) {
      if (!CheckUtf8(path).ok()) {
        return {StatusCode::kInvalidArgument, path + " is not UTF-8, as workers need it; give it another name"};
      }
    }
  }
  if (options_.anchors_folder.empty()) return {};
  const auto goes_by_them = [](const Agent& agent) { return agent.policy == Policy::kTopology; };
  if (std::none_of(topology_.agents.begin(), topology_.agents.end(), goes_by_them)) {
    return {StatusCode::kInvalidArgument,
            "anchors of an earlier run count in policy topology, which no agent has; leave them out"};
  }
  std::error_code error;
  if (std::filesystem::equivalent(options_.anchors_folder, options_.folder, error)) {
    return {StatusCode::kInvalidArgument, options_.folder + " is this run's own folder: anchors are of an earlier run"};
  }
  QKV_ASSIGN_OR_RETURN(anchors_id_, EarlierRunId(options_.anchors_folder));
  return {};
}

Status Runner::RunLevel(size_t first, size_t end) {
  std::vector<size_t> workers;
  for (size_t turn = first; turn < end; ++turn) {
    const Placement placement = topology_.agents[schedule_.turns[turn].agent].placement;
    if (placement == Placement::kWorker) {
      workers.push_back(turn);
    } else {
      QKV_RETURN_IF_ERROR(RunOne(turn));
    }
  }
  return ParallelFor(workers.size(), options_.parallel, [&](size_t i) { return RunOne(workers[i]); });
}

TurnJob Runner::JobOf(size_t index) const {
  const Turn& turn = schedule_.turns[index];
  TurnJob job;
  job.turn = turn.name;
  job.agent = topology_.agents[turn.agent];
  std::vector<const TurnRecord*> senders;
  for (const size_t sender : turn.takes) senders.push_back(&*records_[sender]);
  job.taken = JoinContexts(senders);
  job.readers = ReadersOf(topology_, schedule_, index);
  if (job.agent.probe) {
    for (const size_t receiver : turn.gives) {
      job.receiver_prompts.push_back(topology_.agents[schedule_.turns[receiver].agent].prompt);
    }
  }
  job.folder = options_.folder;
  if (job.agent.policy == Policy::kTopology) {
    job.anchors_folder = options_.anchors_folder;
    job.anchors_id = anchors_id_;
  }
  job.session = options_.session;
  if (job.session.context == 0) job.session.context = topology_.context;
  return job;
}

Status Runner::RunOne(size_t turn) {
  if (cancelled_) return Named({StatusCode::kCancelled, "interrupted"}, turn);
  const TurnJob job = JobOf(turn);
  std::string why;
  std::optional<TurnRecord> record = kept_->Find(job, model_, &why);
  if (!record) {
    if (hooks_.start) {
      const std::lock_guard lock(hooks_mutex_);
      hooks_.start(turn, why);
    }
    Result<TurnRecord> worked = Work(turn, job);
    if (!worked) return Named(worked.status(), turn);
    if (const Status kept = kept_->Keep(*worked, job, model_); !kept.ok()) return Named(kept, turn);
    record = std::move(*worked);
  }
  const std::lock_guard lock(hooks_mutex_);
  records_[turn] = std::move(record);
  if (hooks_.done) hooks_.done(turn, *records_[turn]);
  return {};
}

Result<TurnRecord> Runner::Work(size_t turn, const TurnJob& job) {
  const TurnHooks hooks = HooksOf(turn);
  if (job.agent.placement == Placement::kSame) return RunTurn(model_, job, hooks);
  WorkerLimits limits;
  limits.silence = std::chrono::seconds(job.agent.timeout_s);
  limits.cancel = &cancelled_;
  QKV_ASSIGN_OR_RETURN(
      TurnRecord record,
      RunWorkerTurn(options_.worker_command, {options_.model_path, options_.gpu_layers, job}, limits, hooks));
  const Status checked = CheckTurnCards(record, job, model_);
  if (!checked.ok()) return Status(checked.code(), "the worker's result is damaged: " + checked.message());
  return record;
}

TurnHooks Runner::HooksOf(size_t turn) {
  TurnHooks hooks;
  hooks.progress = [this, turn](const char* what, size_t done, size_t total) {
    const std::lock_guard lock(hooks_mutex_);
    if (hooks_.progress) hooks_.progress(turn, what, done, total);
  };
  hooks.cancel = &cancelled_;
  return hooks;
}

Status Runner::Named(const Status& status, size_t index) const {
  const Turn& turn = schedule_.turns[index];
  const std::string& agent = topology_.agents[turn.agent].name;
  std::string from;
  for (const size_t sender : turn.takes) from += (from.empty() ? "" : ", ") + schedule_.turns[sender].name;
  return {status.code(), fmt::format("agent '{}'{}{}: {}", agent, turn.name == agent ? "" : ", turn " + turn.name,
                                     from.empty() ? "" : ", which takes over from " + from, status.message())};
}

RunRecord Runner::Record() const {
  RunRecord run;
  run.topology = topology_.file;
  run.model = model_.name();
  run.folder = options_.folder;
  run.total_us = total_us_;
  uint64_t tokens = 0;
  int64_t us = 0;
  for (const std::optional<TurnRecord>& record : records_) {
    if (!record) continue;
    run.turns.push_back(*record);
    if (record->taken_tokens > 0) continue;
    for (const auto& [name, stage_us] : record->stages) us += name == "prefill" ? stage_us : 0;
    tokens += record->read_tokens;
  }
  if (tokens > 0) run.prefill_us_per_token = static_cast<double>(us) / static_cast<double>(tokens);
  return run;
}

}  // namespace qkvshare
