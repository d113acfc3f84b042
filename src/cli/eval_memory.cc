#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "cli/eval.h"
#include "cli/interrupted.h"
#include "cli/memory_processes.h"
#include "cli/memory_report.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "eval/memory.h"
#include "runtime/model_store.h"

namespace qkvshare::cli {
namespace {

constexpr const char* kExample =
    "Example:\n  qkvshare eval memory -m qwen2.5-coder-0.5b -f book.txt --depth 8192 -o memory.jsonl\n"
    "Each case is a process of its own, or several. An interrupted run goes on by the same command with the same -o.\n"
    "Linux only: it reads /proc/self/smaps_rollup.";

struct MemoryFlags {
  ModelFlags model;
  std::string file;
  MemoryRequest request;
  bool json = false;
};

Status RunMemory(const MemoryFlags& flags) {
  MemoryRequest request = flags.request;
  if (!request.results.empty()) QKV_RETURN_IF_ERROR(CheckTarget(request.results, {flags.file, flags.model.model}));
  if (const Status status = ReadMemoryUse().status(); !status.ok())
    return {status.code(), "eval memory: " + status.message()};
  QKV_ASSIGN_OR_RETURN(request.text, ReadText(flags.file, size_t{1} << 30));
  QKV_ASSIGN_OR_RETURN(request.model, ResolveModel(flags.model.model));
  request.model = std::filesystem::absolute(request.model).string();
  QKV_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, flags.model.Load());
  const std::string name = model->name();
  std::atomic<bool> cancelled{false};
  const InterruptScope interrupt([&] { cancelled = true; });
  request.session = flags.model.session;
  request.session.cancel = &cancelled;
  request.folder = CacheFolder() + "/bench";
  const std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string(), "eval",
                                            "memory-process"};
  request.run = [&](const MemoryCase& memory_case, size_t processes) {
    return RunMemoryProcesses(command, memory_case, processes, &cancelled);
  };
  MemoryReport report;
  {
    ProgressLine line("measuring ");
    request.on_step = [&](const std::string& step) { line.Note(step); };
    QKV_ASSIGN_OR_RETURN(report, MeasureAgentMemory(std::move(model), request));
  }
  if (flags.json) {
    PrintText(MemoryReportJson(report).dump(2, ' ', /*ensure_ascii=*/false,
                                            nlohmann::ordered_json::error_handler_t::replace) +
              "\n");
  } else {
    PrintMemory(name, request, report);
  }
  return {};
}

}  // namespace

Command AddEvalMemory(CLI::App* eval) {
  auto flags = std::make_shared<MemoryFlags>();
  CLI::App* app = eval->add_subcommand(
      "memory", "Memory of agents that share a context, by their number and along a chain: cards against F16 states");
  app->footer(kExample);
  flags->model.AddModelTo(app);
  MemoryRequest& request = flags->request;
  app->add_option("-f,--file", flags->file, "Text of the context; repeated until it is long enough")->required();
  app->add_option("--depth", request.depth, "Tokens of the context")->check(Count(64, 1 << 20))->capture_default_str();
  app->add_option("--agents", request.agents, "Numbers of agents that share it")
      ->delimiter(',')
      ->check(Count(1, kMaxSequences))
      ->capture_default_str();
  app->add_option("--hops", request.hops, "Hops of a chain that starts with it, to report")
      ->delimiter(',')
      ->check(Count(1, 64))
      ->capture_default_str();
  app->add_option("--suffix", request.suffix, "Tokens that each agent reads after the context")
      ->check(Count(1, 1 << 16))
      ->capture_default_str();
  app->add_option("--hop-tokens", request.hop_tokens, "Tokens that each hop of the chain adds")
      ->check(Count(1, 1 << 14))
      ->capture_default_str();
  app->add_option("--bits", request.bits, "Average bits of the cards, 2 to 16")
      ->check(Finite(2, 16))
      ->capture_default_str();
  app->add_option("-o,--output", request.results, "File of results, from which an interrupted run goes on")
      ->check(NotEmpty());
  app->add_flag("--json", flags->json, "Report as JSON");
  return [flags] {
    const Status status = WithWhatIsKept(RunMemory(*flags), flags->request.results);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
