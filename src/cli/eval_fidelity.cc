#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/file.h"
#include "cli/eval.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/work_progress.h"
#include "eval/fidelity_check.h"
#include "eval/fidelity_run.h"
#include "eval/fidelity_tables.h"
#include "eval/prompt_file.h"
#include "eval/prompt_set.h"

namespace qkvshare::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExample =
    "Example:\n  qkvshare eval fidelity --set receivers --context 1024 --prompts 20 -o receivers.jsonl\n"
    "  qkvshare eval fidelity --set gsm8k:test.jsonl --arm uniform@4 --arm local@3.25,levels=K4V2/K4V4 --arm floor\n"
    "Arms: POLICY@BITS[,KEY=VALUE...] (a card; keys: alpha, features, controller, levels, protect, rounding, seed, "
    "control_of, layers, profile, inject, max_bytes), oracle@BITS, exact, roundtrip:K/V, cache:K/V, floor. "
    "docs/evaluation.md explains "
    "them.";

struct FidelityFlags {
  ModelFlags model;
  std::string set;
  PromptSetRequest prompts;
  bool plain = false;
  std::vector<std::string> arms;
  std::vector<std::string> against;
  size_t predict = 48;
  std::string output;
  bool json = false;
};

// Whether the set is a file of prompts: what is no name of a set, and is there or looks like a path.
bool IsFile(const std::string& set) {
  PromptSetRequest ignored;
  std::error_code error;
  return !ParsePromptSet(set, &ignored).ok() &&
         (std::filesystem::is_regular_file(set, error) || set.find_first_of("./") != std::string::npos);
}

// The file that the set is read from, if there is one.
std::string FileOf(const std::string& set) {
  PromptSetRequest request;
  return ParsePromptSet(set, &request).ok() ? request.file : set;
}

// The prompts, and how they were made.
Status MakePrompts(const FidelityFlags& flags, const Model& model, FidelityRequest* request) {
  if (IsFile(flags.set)) {
    QKV_ASSIGN_OR_RETURN(request->prompts, ReadPromptFile(model, flags.set));
    request->made_by = {{"set", "file"}};
    return {};
  }
  PromptSetRequest wanted = flags.prompts;
  if (const Status status = ParsePromptSet(flags.set, &wanted); !status.ok())
    return {status.code(), status.message() + ", or a file of your own prompts"};
  wanted.chat = !flags.plain && wanted.set != PromptSet::kGsm8k && HasChat(model);
  QKV_ASSIGN_OR_RETURN(request->prompts, MakePromptSet(model, wanted));
  request->made_by = {{"set", flags.set.substr(0, flags.set.find(':'))},
                      {"context", wanted.context_tokens},
                      {"seed", wanted.seed},
                      {"chat", wanted.chat}};
  return {};
}

bool Knows(const FidelityArm& arm, const std::vector<EvalPrompt>& prompts) {
  return std::all_of(prompts.begin(), prompts.end(), [&](const EvalPrompt& prompt) {
    return std::all_of(prompt.continuations.begin(), prompt.continuations.end(),
                       [&](const Continuation& c) { return CheckKnows(arm, prompt, c).ok(); });
  });
}

// Those that were asked for, or of the usual ones those that the prompts have something for.
Status ChooseArms(const FidelityFlags& flags, FidelityRequest* request) {
  QKV_ASSIGN_OR_RETURN(request->arms, ParseFidelityArms(flags.arms.empty() ? DefaultFidelityArms() : flags.arms));
  if (!flags.arms.empty()) return {};
  std::erase_if(request->arms, [&](const FidelityArm& arm) {
    const bool knows = Knows(arm, request->prompts);
    if (!knows) PrintNote(fmt::format("without {}: the prompts tell nothing of their receivers\n", arm.name));
    return !knows;
  });
  return {};
}

// What is to be compared with, by the names of results.
Status ChooseAgainst(const FidelityFlags& flags, const FidelityRequest& request, std::vector<std::string>* names) {
  for (const std::string& text : flags.against) {
    QKV_ASSIGN_OR_RETURN(const FidelityArm arm, ParseFidelityArm(text));
    const bool known = std::any_of(request.arms.begin(), request.arms.end(),
                                   [&](const FidelityArm& other) { return other.name == arm.name; });
    if (!known) return {StatusCode::kInvalidArgument, fmt::format("--against {}: it is none of the arms", text)};
    names->push_back(arm.name);
  }
  return {};
}

void PrintSummary(const FidelityFlags& flags, const FidelityRequest& request, const FidelitySummary& summary) {
  if (!flags.json) {
    fmt::print("{}", FidelityText(summary));
    return;
  }
  Json json = {{"made_by", request.made_by}, {"prompts", request.prompts.size()}};
  json["summary"] = FidelityJson(summary);
  PrintJson(json);
}

Status RunEvalFidelity(const FidelityFlags& flags) {
  if (!flags.arms.empty()) QKV_RETURN_IF_ERROR(ParseFidelityArms(flags.arms).status());  // before the model is loaded
  if (!flags.output.empty()) QKV_RETURN_IF_ERROR(CheckTarget(flags.output, {FileOf(flags.set), flags.model.model}));
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, flags.model.Load());
  FidelityRequest request;
  QKV_RETURN_IF_ERROR(MakePrompts(flags, *model, &request));
  QKV_RETURN_IF_ERROR(ChooseArms(flags, &request));
  FidelitySummaryOptions options;
  QKV_RETURN_IF_ERROR(ChooseAgainst(flags, request, &options.against));
  std::atomic<bool> cancelled{false};
  request.predict = flags.predict;
  request.session = flags.model.session;
  request.session.cancel = &cancelled;
  request.results = flags.output;
  std::vector<FidelityLine> lines;
  {
    const InterruptScope interrupt([&] { cancelled = true; });
    WorkProgress progress("measuring ");
    request.on_step = [&](const FidelityProgress& at) {
      progress.Show(at.done, at.total, fmt::format("prompt {} of {}, {}", at.prompt + 1, at.prompts, at.what));
    };
    Result<std::vector<FidelityLine>> measured = RunFidelity(*model, request);
    if (!measured && measured.status().code() == StatusCode::kCancelled && !flags.output.empty()) {
      return {StatusCode::kCancelled,
              fmt::format("interrupted; the same command goes on from {}, prompt by prompt", flags.output)};
    }
    if (!measured) return measured.status();
    lines = std::move(*measured);
  }
  QKV_ASSIGN_OR_RETURN(const FidelitySummary summary, SummarizeFidelity(lines, options));
  PrintSummary(flags, request, summary);
  return {};
}

}  // namespace

Command AddEvalFidelity(CLI::App* eval) {
  auto flags = std::make_shared<FidelityFlags>();
  CLI::App* app = eval->add_subcommand(
      "fidelity", "What next-token distributions lose by policies, codecs and caches, on many prompts");
  app->footer(kExample);
  flags->model.AddModelTo(app);
  app->add_option("--set", flags->set,
                  "Prompts: gsm8k:FILE, facts, receivers, or a file of your own, JSON lines of context and turns")
      ->required()
      ->check(NotEmpty());
  app->add_option("--context", flags->prompts.context_tokens, "Tokens of each context, about (not of a file)")
      ->check(Count(64, 1 << 20))
      ->capture_default_str();
  app->add_option("--prompts", flags->prompts.prompts, "Prompts (not of a file)")
      ->check(Count(1, 100'000))
      ->capture_default_str();
  app->add_option("--seed", flags->prompts.seed, "Of the prompts")->capture_default_str();
  app->add_flag("--plain", flags->plain, "No chat template, even where the model has one");
  app->add_option("--arm", flags->arms,
                  "A way to hand over; repeated (default: cards of 4 bits by each policy, and all others)")
      ->check(NotEmpty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--against", flags->against,
                  "An arm that the others are compared with; repeated (default: the first)")
      ->check(NotEmpty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("-n,--predict", flags->predict, "Tokens of an answer that is not given, at most")
      ->check(Count(0))
      ->capture_default_str();
  app->add_option("-o,--output", flags->output, "Results, a line a continuation and arm; an interrupted run goes on")
      ->check(NotEmpty());
  app->add_flag("--json", flags->json, "Summary as JSON");
  return [flags] {
    const Status status = RunEvalFidelity(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
