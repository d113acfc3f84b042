// qkvshare agents run: a topology, from its file to what its agents wrote.
#include <fmt/format.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "agents/run_json.h"
#include "agents/run_page.h"
#include "agents/runner.h"
#include "agents/schedule.h"
#include "agents/topology_file.h"
#include "agents/turn_tokens.h"
#include "agents/worker.h"
#include "base/file.h"
#include "card/card.h"
#include "cli/agents.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "runtime/model_store.h"

namespace qkvshare::cli {
namespace {

struct AgentsRunFlags {
  ModelFlags model;
  std::string file;
  std::string folder;
  std::string anchors_folder;
  std::string html;
  int parallel = 1;
  bool resume = false;
  bool json = false;
};

constexpr size_t kMaxJobBytes = size_t{256} << 20;

std::string TimeOrDash(int64_t us) { return us > 0 ? FormatUs(us) : "-"; }

// "critic.2: 512 tokens taken over, 20 read, 35 written (stopped); 12 kB handed on at 4.00 bits, first token after
// ...".
std::string TurnLine(const TurnRecord& turn) {
  const std::string handed_on =
      turn.gives.empty() ? ""
                         : fmt::format("{} handed on at {:.2f} bits, ", FormatBytes(turn.card_bytes), turn.code_bits);
  return Printable(fmt::format("{}: {} tokens taken over, {} read, {} written ({}){}; {}first token after {}{}",
                               turn.turn, turn.taken_tokens, turn.read_tokens, turn.generated_tokens,
                               OutcomeName(turn.outcome), turn.resumed ? ", done before" : "", handed_on,
                               FormatUs(turn.ttft_us), turn.note.empty() ? "" : "; " + turn.note));
}

void PrintTable(const RunRecord& run) {
  using Row = std::array<std::string, 9>;
  std::vector<Row> rows = {
      {"turn", "taken over", "read", "written", "ended", "handed on", "first token", "re-prefill", "mode"}};
  uint64_t taken = 0, bytes = 0;
  int64_t ttft = 0, reprefill = 0;
  for (const TurnRecord& turn : run.turns) {
    rows.push_back({turn.turn, fmt::format("{}", turn.taken_tokens), fmt::format("{}", turn.read_tokens),
                    fmt::format("{}", turn.generated_tokens), OutcomeName(turn.outcome),
                    turn.gives.empty() ? "-" : FormatBytes(turn.card_bytes), FormatUs(turn.ttft_us),
                    TimeOrDash(run.ReprefillUs(turn)),
                    turn.mode + (turn.worker ? ", worker" : "") + (turn.resumed ? ", done before" : "")});
    taken += turn.taken_tokens;
    bytes += turn.card_bytes;
    ttft += turn.ttft_us;
    reprefill += run.ReprefillUs(turn);
  }
  std::array<size_t, 9> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    text += fmt::format("{:<{}}", row[0], widths[0]);
    for (size_t i = 1; i + 1 < row.size(); ++i) text += fmt::format("  {:>{}}", row[i], widths[i]);
    text += "  " + row.back() + "\n";
  }
  text += fmt::format("{} tokens taken over, {} handed on; first tokens after {} in all", taken, FormatBytes(bytes),
                      FormatUs(ttft));
  if (reprefill > 0) text += fmt::format(", and {} more had they been prefilled again", FormatUs(reprefill));
  PrintNote(text + fmt::format("; {} in all\n", FormatUs(run.total_us)));
}

// What those agents wrote who hand on to nobody.
void PrintAnswers(const Schedule& schedule, const RunRecord& run) {
  size_t last = 0;
  for (const Turn& turn : schedule.turns) last += turn.gives.empty() ? 1 : 0;
  for (size_t i = 0; i < run.turns.size(); ++i) {
    if (!schedule.turns[i].gives.empty()) continue;
    PrintText((last > 1 ? run.turns[i].turn + ":\n" : "") + run.turns[i].text + "\n");
  }
}

class AgentsRun {
 public:
  explicit AgentsRun(const AgentsRunFlags& flags) : flags_(flags) {}

  Status Run() {
    QKV_ASSIGN_OR_RETURN(topology_, ReadTopology(flags_.file));
    QKV_ASSIGN_OR_RETURN(schedule_, MakeSchedule(topology_));
    if (!flags_.html.empty()) {
      QKV_RETURN_IF_ERROR(CheckTarget(flags_.html, {flags_.file}));
      QKV_RETURN_IF_ERROR(CheckKind(flags_.html, kPageStart, "a page"));
    }
    ModelFlags model = flags_.model;
    if (model.model.empty()) model.model = topology_.model.empty() ? ModelFlags().model : topology_.model;
    QKV_ASSIGN_OR_RETURN(model_, model.Load());
    RunOptions options;
    QKV_ASSIGN_OR_RETURN(options.model_path, ResolveModel(model.model));
    options.model_path = std::filesystem::absolute(options.model_path).string();
    options.gpu_layers = model.gpu_layers;
    options.folder = flags_.folder;
    if (options.folder.empty()) options.folder = std::filesystem::path(flags_.file).stem().string() + ".run";
    options.resume = flags_.resume;
    options.anchors_folder = flags_.anchors_folder;
    options.session = model.session;
    options.parallel = flags_.parallel;
    options.worker_command = {std::filesystem::read_symlink("/proc/self/exe").string(), "agents", "worker"};
    runner_ = std::make_unique<Runner>(topology_, schedule_, *model_, std::move(options), Hooks());
    Status status;
    {
      const InterruptScope interrupt([this] { runner_->Cancel(); });
      status = runner_->Run();
    }
    line_.reset();
    return status.ok() ? Report() : Explain(status);
  }

 private:
  RunHooks Hooks() {
    RunHooks hooks;
    hooks.start = [this](size_t turn, const std::string& note) {
      const std::string& name = schedule_.turns[turn].name;
      if (!note.empty()) PrintNote(Printable(fmt::format("{}: done again: {}", name, note)) + "\n");
    };
    hooks.progress = [this](size_t turn, const char* what, size_t done, size_t total) {
      if (shown_ != turn || !line_) {
        line_.reset();
        line_ = std::make_unique<ProgressLine>(schedule_.turns[turn].name);
        shown_ = turn;
      }
      line_->Update(done, total, what);
    };
    hooks.done = [this](size_t, const TurnRecord& record) {
      line_.reset();
      PrintNote(TurnLine(record) + "\n");
    };
    return hooks;
  }

  Status Explain(const Status& status) const {
    const RunRecord run = runner_->Record();
    if (run.turns.empty()) return status;
    return {status.code(), fmt::format("{}; {} of {} turns are done and kept in {}: --resume goes on from there",
                                       status.message(), run.turns.size(), schedule_.turns.size(), run.folder)};
  }

  // The page shows the cards as they lie in the folder.
  Status WritePage(const RunRecord& run) const {
    std::vector<TurnTokens> tokens;
    for (const TurnRecord& turn : run.turns) {
      QKV_ASSIGN_OR_RETURN(const Card card, Card::Open((std::filesystem::path(run.folder) / turn.card.path).string()));
      tokens.push_back(ReadTurnTokens(card, [this](int32_t token) { return model_->Detokenize({token}); }));
    }
    QKV_RETURN_IF_ERROR(CheckKind(flags_.html, kPageStart, "a page"));  // it may be a card of this run by now
    const std::string page = RunPage(topology_, schedule_, run, tokens);
    return WriteFileAtomic(flags_.html, {{reinterpret_cast<const uint8_t*>(page.data()), page.size()}});
  }

  Status Report() {
    const RunRecord run = runner_->Record();
    if (flags_.json) {
      PrintJson(nlohmann::json::parse(RunRecordToJson(run)));
    } else {
      PrintTable(run);
      PrintAnswers(schedule_, run);
    }
    if (!flags_.html.empty()) QKV_RETURN_IF_ERROR(WritePage(run));
    return {};
  }

  const AgentsRunFlags& flags_;
  Topology topology_;
  Schedule schedule_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<ProgressLine> line_;  // of the turn that said something last
  size_t shown_ = 0;
};

}  // namespace

Command AddAgentsRun(CLI::App* app) {
  auto flags = std::make_shared<AgentsRunFlags>();
  flags->model.model.clear();
  app->footer(
      "Example:\n  qkvshare agents run examples/agents/writer_critic_editor.yaml --dir letters --html letters.html\n"
      "Prints what the last agents wrote. The folder keeps each turn's card and record: --resume goes on with a run\n"
      "that was cut short, and does only those turns again whose instructions, cards or settings have changed.");
  app->add_option("file", flags->file, "The topology: YAML or JSON, see docs/agents.md")->required();
  flags->model.AddTo(app);
  app->get_option("--model")->description("GGUF file or name; else the topology's")->default_str("");
  app->add_option("--dir", flags->folder, "Folder of the run (default: the topology's name with .run)")
      ->check(NotEmpty());
  app->add_flag("--resume", flags->resume, "Go on with the run that is in the folder");
  app->add_option("--anchors-from", flags->anchors_folder,
                  "Folder of an earlier run: what its agents attended to counts in policy topology")
      ->check(NotEmpty());
  app->add_option("--parallel", flags->parallel, "Workers at a time, as llama.cpp's -np")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--html", flags->html, "Write a page about the run: graph, times, texts and bit maps")
      ->check(NotEmpty());
  app->add_flag("--json", flags->json, "Report as JSON");
  return [flags] {
    AgentsRun run(*flags);
    const Status status = run.Run();
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

int RunAgentsWorker() {
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // a run that is killed takes its workers with it
  IgnoreBrokenPipes();
  std::atomic<bool> cancelled{false};
  const InterruptScope interrupt([&] { cancelled = true; });
  const Result<std::string> input = ReadText("-", kMaxJobBytes);
  if (!input) return ReportError(input.status());
  const Status status = DoWorkerJob(*input, [](const std::string& line) { PrintText(line + "\n"); }, &cancelled);
  return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
}

}  // namespace qkvshare::cli
