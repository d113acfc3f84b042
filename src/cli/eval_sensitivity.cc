#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/eval.h"
#include "cli/interrupted.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/work_progress.h"
#include "eval/gsm8k_problems.h"
#include "eval/prompt_set.h"
#include "eval/sensitivity_run.h"
#include "runtime/model_weights.h"
#include "runtime/pack_text.h"

namespace qkvshare::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExample =
    "Example:\n  qkvshare eval sensitivity -m model-f32.gguf --data train.jsonl --prompts 50 --tokens 24 -o "
    "labels.jsonl\n"
    "  tools/train_controller.py labels.jsonl -o controller.json\n"
    "Use a model with F32 weights: quantized ones hide what one token does. docs/policies.md explains it.";

struct SensitivityFlags {
  ModelFlags model;
  std::string data;
  PromptSetRequest prompts;
  size_t tokens = 16;
  std::string level = "K2V2";
  std::string output;
  bool json = false;
};

Result<Level> ParseLevel(const std::string& text) {
  QKV_ASSIGN_OR_RETURN(const std::vector<Level> levels, ParseLevels(text));
  if (levels.size() == 1 && levels[0] != kExactLevel) return levels[0];
  return Status(StatusCode::kInvalidArgument, fmt::format("--level {}: give one level that is not exact", text));
}

void PrintSummary(const SensitivityFlags& flags, const Model& model, const SensitivitySummary& summary) {
  if (flags.json) {
    Json correlations = Json::object();
    for (const auto& [name, correlation] : summary.rank_correlation) correlations[name] = correlation;
    const Json json = {{"weights", DescribeWeights(model)},  {"level", flags.level},
                       {"prompts", summary.prompts},         {"tokens", summary.tokens},
                       {"mean_kl", summary.mean_kl},         {"median_kl", summary.median_kl},
                       {"largest_kl", summary.largest_kl},   {"floor", summary.floor},
                       {"above_floor", summary.above_floor}, {"rank_correlation", correlations}};
    PrintText(json.dump(2) + "\n");
    return;
  }
  fmt::print("{} tokens of {} contexts, one at a time at {}; weights: {}\n", summary.tokens, summary.prompts,
             flags.level, DescribeWeights(model));
  fmt::print("  KL: mean {:.3g}, median {:.3g}, largest {:.3g}\n", summary.mean_kl, summary.median_kl,
             summary.largest_kl);
  fmt::print("  noise floor (FP16 against itself in pieces of 16): {:.3g}; {:.0f}% of the tokens are above it\n",
             summary.floor, 100 * summary.above_floor);
  fmt::print("  rank correlation with the KL, mean over contexts:\n");
  for (const auto& [name, correlation] : summary.rank_correlation)
    fmt::print("    {:<24} {:>6.3f}\n", name, correlation);
}

Status RunEvalSensitivity(const SensitivityFlags& flags) {
  SensitivityRequest request;
  QKV_ASSIGN_OR_RETURN(request.level, ParseLevel(flags.level));
  if (!flags.output.empty()) QKV_RETURN_IF_ERROR(CheckTarget(flags.output, {flags.data, flags.model.model}));
  QKV_RETURN_IF_ERROR(ReadGsmProblems(flags.data).status());  // before the model is loaded
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, flags.model.Load());
  if (!HasFloatWeights(*model)) {
    PrintNote(
        fmt::format("the model's weights are {}: what one token does is below the noise of its products; use one "
                    "with F32 weights\n",
                    DescribeWeights(*model)));
  }
  PromptSetRequest prompts = flags.prompts;
  prompts.set = PromptSet::kGsm8k;
  prompts.file = flags.data;
  QKV_ASSIGN_OR_RETURN(request.prompts, MakePromptSet(*model, prompts));
  request.made_by = {{"set", "gsm8k"}, {"context", prompts.context_tokens}, {"seed", prompts.seed}};
  request.tokens = flags.tokens;
  request.seed = prompts.seed;
  request.session = flags.model.session;
  request.results = flags.output;
  std::atomic<bool> cancelled{false};
  request.session.cancel = &cancelled;
  std::vector<SensitivityLine> lines;
  {
    const InterruptScope interrupt([&] { cancelled = true; });
    WorkProgress progress("measuring ");
    request.on_step = [&](const SensitivityProgress& at) {
      progress.Show(at.done, at.total, fmt::format("prompt {} of {}, {}", at.prompt + 1, at.prompts, at.what));
    };
    QKV_ASSIGN_OR_RETURN(lines, RunSensitivity(*model, request));
  }
  PrintSummary(flags, *model, SummarizeSensitivity(lines));
  return {};
}

}  // namespace

Command AddEvalSensitivity(CLI::App* eval) {
  auto flags = std::make_shared<SensitivityFlags>();
  CLI::App* app =
      eval->add_subcommand("sensitivity", "What lowering one token's width costs: labels to train a controller on");
  app->footer(kExample);
  flags->prompts.context_tokens = 512;
  flags->model.AddModelTo(app);
  app->add_option("--data", flags->data, "Problems of GSM8K: train.jsonl")->required()->check(NotEmpty());
  app->add_option("--prompts", flags->prompts.prompts, "Contexts")->check(Count(1, 100'000))->capture_default_str();
  app->add_option("--tokens", flags->tokens, "Tokens of each context to lower, one at a time")
      ->check(Count(1, 1 << 16))
      ->capture_default_str();
  app->add_option("--context", flags->prompts.context_tokens, "Tokens of each context, about")
      ->check(Count(64, 1 << 20))
      ->capture_default_str();
  app->add_option("--seed", flags->prompts.seed, "Of contexts and tokens")->capture_default_str();
  app->add_option("--level", flags->level, "What a token is lowered to")->capture_default_str();
  app->add_option("-o,--output", flags->output, "Labels, a line a token; an interrupted run goes on")
      ->check(NotEmpty());
  app->add_flag("--json", flags->json, "Summary as JSON");
  return [flags] {
    const Status status = WithWhatIsKept(RunEvalSensitivity(*flags), flags->output);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
