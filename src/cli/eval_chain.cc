#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "base/file.h"
#include "cli/chain_flags.h"
#include "cli/eval.h"
#include "cli/interrupted.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/work_progress.h"
#include "eval/chain_arm.h"
#include "eval/chain_report.h"
#include "eval/chain_run.h"
#include "eval/chain_summary.h"

namespace qkvshare::cli {
namespace {

constexpr const char* kExample =
    "Arms:\n"
    "  f16                       the sequence goes on in llama.cpp's F16 cache\n"
    "  text                      the conversation is prefilled again in each hop\n"
    "  POLICY@BITS[,KEY=VALUE]   a card of each hop, attached: uniform@4, topology@3.25,alpha=0.3\n"
    "  exact                     the same in FP16: the path alone\n"
    "  requantized@BITS          one card of everything, packed anew in each hop\n"
    "  cache:K/V                 the sequence goes on in a cache of these types: cache:q8_0/q4_0\n\n"
    "Example:\n  qkvshare eval chain -m qwen2.5-coder-1.5b --problems test.jsonl --examples train.jsonl --count 150 "
    "-o chains\nThe same command again goes on where it was interrupted.";

struct EvalChainFlags {
  ChainFlags chains;
  std::string folder, markdown;
  std::vector<std::string> arms = {"f16", "uniform@4", "topology@4", "random@4,control_of=topology"};
  std::vector<std::string> against;
  bool json = false;
};

Result<std::vector<ChainArm>> ParseArms(const std::vector<std::string>& texts) {
  std::vector<ChainArm> arms;
  std::set<std::string> names;
  for (const std::string& text : texts) {
    QKV_ASSIGN_OR_RETURN(ChainArm arm, ParseChainArm(text));
    if (!names.insert(arm.FileName()).second)
      return Status(StatusCode::kInvalidArgument, fmt::format("arm {}: it is there twice", text));
    arms.push_back(std::move(arm));
  }
  return arms;
}

std::string PathOf(const std::string& folder, const ChainArm& arm) {
  return (std::filesystem::path(folder) / (arm.FileName() + ".jsonl")).string();
}

// Whether it has a line: an interruption may have left an empty file.
bool HasResults(const std::string& path) {
  std::error_code missing;
  const auto bytes = std::filesystem::file_size(path, missing);
  return !missing && bytes > 0;
}

// The arms' files first, in their order, then what else is in the folder.
std::vector<std::string> FilesOf(const std::string& folder, const std::vector<ChainArm>& arms) {
  std::vector<std::string> files;
  for (const ChainArm& arm : arms) {
    if (HasResults(PathOf(folder, arm))) files.push_back(PathOf(folder, arm));
  }
  std::vector<std::string> others;
  std::error_code ignored;  // what cannot be read holds nothing to compare with
  for (std::filesystem::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    const std::string path = entry->path().string();
    if (entry->path().extension() == ".jsonl" && HasResults(path) &&
        std::find(files.begin(), files.end(), path) == files.end())
      others.push_back(path);
  }
  std::sort(others.begin(), others.end());
  files.insert(files.end(), others.begin(), others.end());
  return files;
}

Status RunArms(const EvalChainFlags& flags, const std::vector<ChainArm>& arms, const Model& model,
               const ChainSet& set) {
  std::atomic<bool> cancel{false};
  const InterruptScope interrupt([&] { cancel.store(true); });
  for (size_t i = 0; i < arms.size(); ++i) {
    const size_t all = set.request.chains.size() * set.request.hops;
    WorkProgress progress(fmt::format("{} ({} of {} arms): ", arms[i].name, i + 1, arms.size()));
    ChainRunHooks hooks;
    for (const std::string& file : FilesOf(flags.folder, arms)) {
      if (file != PathOf(flags.folder, arms[i])) hooks.beside.push_back(file);
    }
    hooks.cancel = &cancel;
    hooks.on_hop = [&](size_t done, size_t hop) {
      progress.Show(done, all, fmt::format("{} of {} answers, hop {}", done, all, hop + 1));
    };
    QKV_RETURN_IF_ERROR(RunChainArm(model, set, arms[i], PathOf(flags.folder, arms[i]), hooks));
  }
  return {};
}

Status Summarize(const EvalChainFlags& flags, const std::vector<ChainArm>& arms) {
  QKV_ASSIGN_OR_RETURN(const std::vector<ChainResults> results, ReadChainResults(FilesOf(flags.folder, arms)));
  std::vector<std::string> against;
  for (const std::string& text : flags.against) {
    QKV_ASSIGN_OR_RETURN(const ChainArm arm, ParseChainArm(text));
    against.push_back(arm.name);
  }
  QKV_ASSIGN_OR_RETURN(const ChainSummary summary, SummarizeChains(results, against));
  if (!flags.markdown.empty()) {
    const std::string text = ChainMarkdown(summary);
    QKV_RETURN_IF_ERROR(
        WriteFileAtomic(flags.markdown, {ByteSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size())}));
  }
  if (flags.json) {
    PrintJson(ChainJson(summary));
  } else {
    PrintText(ChainText(summary));
  }
  return {};
}

// All that can be known to be wrong comes before hours of work.
Status RunChain(const EvalChainFlags& flags) {
  QKV_ASSIGN_OR_RETURN(const std::vector<ChainArm> arms, ParseArms(flags.arms));
  for (const std::string& text : flags.against) {
    QKV_ASSIGN_OR_RETURN(const ChainArm arm, ParseChainArm(text));
    if (std::none_of(arms.begin(), arms.end(), [&](const ChainArm& a) { return a.name == arm.name; })) {
      return {StatusCode::kInvalidArgument, fmt::format("--against {}: is none of the arms; add --arm {}", text, text)};
    }
  }
  if (!flags.markdown.empty())
    QKV_RETURN_IF_ERROR(CheckTarget(flags.markdown, {flags.chains.problems, flags.chains.examples}));
  QKV_RETURN_IF_ERROR(ReadChainResults(FilesOf(flags.folder, arms)).status());
  QKV_ASSIGN_OR_RETURN(const ChainFlags::Chains chains, flags.chains.Load());
  for (const ChainArm& arm : arms) {
    const Status fits = CheckChainArm(*chains.model, chains.set, arm);
    if (!fits.ok()) return {fits.code(), fmt::format("arm {}: {}", arm.name, fits.message())};
  }
  QKV_RETURN_IF_ERROR(MakeFolders(flags.folder));
  QKV_RETURN_IF_ERROR(WithWhatIsKept(RunArms(flags, arms, *chains.model, chains.set), flags.folder));
  return Summarize(flags, arms);
}

}  // namespace

Command AddEvalChain(CLI::App* eval) {
  auto flags = std::make_shared<EvalChainFlags>();
  CLI::App* app = eval->add_subcommand(
      "chain", "Right answers to word problems (GSM8K) after each of several hops, by what was handed over");
  app->footer(kExample);
  flags->chains.AddTo(app);
  app->add_option("--arm", flags->arms, "A way of handing over; may be repeated")
      ->check(NotEmpty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  app->add_option("--against", flags->against,
                  "An arm that the others are compared with; may be repeated (default: f16, or else the first)")
      ->check(NotEmpty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("-o,--output", flags->folder,
                  "Folder of results, ARM.jsonl each, from which the run goes on; made where it is not there")
      ->required()
      ->check(NotEmpty());
  app->add_option("--markdown", flags->markdown, "The tables as Markdown too")->check(NotEmpty());
  app->add_flag("--json", flags->json, "Report as JSON");
  return [flags] {
    const Status status = RunChain(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
