// qkvshare: hands an agent's context to the next one.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "qkvshare/version.h"
#include "quant/kernels.h"
#include "runtime/backend.h"

namespace qkvshare::cli {
namespace {

// llama.cpp's flags of several letters behind one dash, which CLI11 does not have.
constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
    {"-ngl", "--gpu-layers"},   {"-ub", "--ubatch-size"}, {"-sys", "--system-prompt"}, {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"}, {"-fa", "--flash-attn"},  {"-np", "--parallel"},
};

std::vector<std::string> Arguments(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {  // CLI11 takes them in reverse
    const std::string_view argument = argv[i];
    const auto* const found = std::find_if(std::begin(kLongNames), std::end(kLongNames),
                                           [&](const auto& names) { return names.first == argument; });
    arguments.emplace_back(found == std::end(kLongNames) ? argument : found->second);
  }
  return arguments;
}

constexpr const char* kFooter =
    "Exit codes: 0 done, 1 failure, 2 wrong flags or input, 3 refused (corrupt, of another model, unsupported),\n"
    "4 file or network, 5 too long for the context or a limit, 130 interrupted.\n"
    "Each command has an example: qkvshare COMMAND --help";

// The exit code of a command whose output may be lost.
int Finish(int code) {
  const Status flushed = FlushOutput();
  return code == kSuccess && !flushed.ok() ? ReportError(flushed) : code;
}

int Main(int argc, char** argv) {
  CLI::App app("Hands an agent's context to the next one as a CacheCard: the KV cache, quantized token by token.",
               "qkvshare");
  app.set_version_flag("--version", fmt::format("qkvshare {} (llama.cpp {})", kVersionText, LlamaVersion()));
  app.footer(kFooter);
  app.require_subcommand(0, 1);  // none is reported below, so that a wrong name is reported as such
  const std::vector<std::pair<CLI::App*, Command>> commands = [&] {
    std::vector<std::pair<CLI::App*, Command>> list;
    const auto add = [&](const char* name, const char* description, Command (*make)(CLI::App*)) {
      CLI::App* command = app.add_subcommand(name, description);
      list.emplace_back(command, make(command));
    };
    add("pack", "Read a prompt and write a card of it", AddPack);
    add("run", "Continue from a card: card and prompt to text", AddRun);
    add("info", "Show what a card holds", AddInfo);
    add("verify", "Check all of a card: checksums, digests, values", AddVerify);
    add("calibrate", "Measure a model's key statistics, to pack with", AddCalibrate);
    add("flatten", "Make one card of cards that continue each other", AddFlatten);
    add("unpack", "Write what a card holds as NumPy arrays", AddUnpack);
    add("agents", "Several agents that hand cards on, as a topology file says", AddAgents);
    add("models", "Models that can be had by name", AddModels);
    add("eval", "Measure hand-overs", AddEval);
    add("report", "Make a page of results of eval", AddReport);
    return list;
  }();
  try {
    app.parse(Arguments(argc, argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return Finish(app.exit(error));  // --help, --version
    return ReportError({StatusCode::kInvalidArgument, fmt::format("{}; see --help", error.what())});
  }
  if (const Result<const Kernels*> kernels = SelectKernels(); !kernels) return ReportError(kernels.status());
  for (const auto& [command, run] : commands) {
    if (command->parsed()) return Finish(run());
  }
  return ReportError({StatusCode::kInvalidArgument, "a command is needed; see --help"});
}

}  // namespace
}  // namespace qkvshare::cli

int main(int argc, char** argv) {
  // A closed standard stream must not become a file that is opened later.
  int fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd >= 0) close(fd);
  try {
    return qkvshare::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    return qkvshare::cli::ReportError({qkvshare::StatusCode::kInternal, error.what()});
  }
}
