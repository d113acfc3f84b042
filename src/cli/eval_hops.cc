#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/chain_flags.h"
#include "cli/eval.h"
#include "cli/interrupted.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/work_progress.h"
#include "eval/chain_arm.h"
#include "eval/chain_run.h"
#include "eval/hop_kl_arm.h"
#include "eval/hop_kl_report.h"
#include "eval/hop_kl_run.h"

namespace qkvshare::cli {
namespace {

constexpr const char* kExample =
    "The conversations are those of `eval chain --arm f16` with the same flags: what is not there yet is answered "
    "first.\n"
    "Arms:\n"
    "  POLICY@BITS[,KEY=VALUE]   a card of each hop, attached: uniform@4, topology@3.25,alpha=0.3\n"
    "  once@BITS                 all hops before as one uniform card, packed from the F16 sequence\n"
    "  exact                     a card of each hop in FP16: the path alone\n"
    "  requantized@BITS          one card of everything, packed anew in each hop\n"
    "  cache:K/V                 the sequence goes on in a cache of these types\n"
    "  floor                     the F16 sequence again, in pieces of 16 tokens\n\n"
    "Example:\n  qkvshare eval hops -m qwen2.5-coder-1.5b --problems test.jsonl --examples train.jsonl --count 150 "
    "--conversations chains/f16.jsonl --first 40 -o hops.jsonl\nThe same command again goes on where it was "
    "interrupted.";

struct HopsFlags {
  ChainFlags chains;
  std::string conversations, output;
  size_t first = 0;
  std::vector<std::string> arms = DefaultHopKlArms();
  std::vector<std::string> against;
  bool json = false;
};

Result<std::vector<std::string>> ChooseAgainst(const HopsFlags& flags, const std::vector<HopKlArm>& arms) {
  std::vector<std::string> names;
  for (const std::string& text : flags.against) {
    QKV_ASSIGN_OR_RETURN(const HopKlArm arm, ParseHopKlArm(text));
    if (std::none_of(arms.begin(), arms.end(), [&](const HopKlArm& a) { return a.arm.name == arm.arm.name; })) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("--against {}: is none of the arms; add --arm {}", text, text));
    }
    names.push_back(arm.arm.name);
  }
  return names;
}

// What is not there yet is answered first, and kept.
Result<std::vector<HopRecord>> Conversations(const HopsFlags& flags, const ChainFlags::Chains& chains,
                                             const std::atomic<bool>& cancel) {
  QKV_ASSIGN_OR_RETURN(const ChainArm f16, ParseChainArm("f16"));
  const size_t all = chains.set.request.chains.size() * chains.set.request.hops;
  WorkProgress progress("conversations: ");
  ChainRunHooks hooks;
  hooks.cancel = &cancel;
  hooks.on_hop = [&](size_t done, size_t hop) {
    progress.Show(done, all, fmt::format("{} of {} answers, hop {}", done, all, hop + 1));
  };
  const Status status = RunChainArm(*chains.model, chains.set, f16, flags.conversations, hooks);
  QKV_RETURN_IF_ERROR(WithWhatIsKept(status, flags.conversations));
  return ReadConversations(flags.conversations, flags.first);
}

Result<std::vector<FidelityLine>> Measure(const HopsFlags& flags, std::vector<HopKlArm> arms,
                                          const ChainFlags::Chains& chains) {
  std::atomic<bool> cancel{false};
  const InterruptScope interrupt([&] { cancel.store(true); });
  HopKlRequest request;
  request.conversation = chains.set.request;
  request.arms = std::move(arms);
  request.results = flags.output;
  request.cancel = &cancel;
  QKV_RETURN_IF_ERROR(CheckHopKlArms(*chains.model, request));
  QKV_ASSIGN_OR_RETURN(request.said, Conversations(flags, chains, cancel));
  WorkProgress progress("measuring ");
  request.on_step = [&](const HopKlProgress& at) {
    progress.Show(at.done, at.total, fmt::format("conversation {} of {}, {}", at.chain + 1, at.chains, at.what));
  };
  Result<std::vector<FidelityLine>> lines = RunHopKl(*chains.model, request);
  if (!lines) return WithWhatIsKept(lines.status(), flags.output);
  return lines;
}

// All that can be known to be wrong comes before the work.
Status RunEvalHops(const HopsFlags& flags) {
  QKV_ASSIGN_OR_RETURN(std::vector<HopKlArm> arms, ParseHopKlArms(flags.arms));
  QKV_ASSIGN_OR_RETURN(std::vector<std::string> against, ChooseAgainst(flags, arms));
  if (flags.chains.protocol.count > 0 && flags.first > flags.chains.protocol.count) {
    return {StatusCode::kInvalidArgument, fmt::format("--first {}: there are only {} conversations (--count)",
                                                      flags.first, flags.chains.protocol.count)};
  }
  const std::vector<std::string> inputs = {flags.chains.problems, flags.chains.examples};
  QKV_RETURN_IF_ERROR(CheckTarget(flags.conversations, inputs));
  if (!flags.output.empty()) {
    QKV_RETURN_IF_ERROR(CheckTarget(flags.output, {inputs[0], inputs[1], flags.conversations}));
    if (flags.output == flags.conversations) {
      return {StatusCode::kInvalidArgument,
              flags.output + " cannot be the conversations and the results; give two names"};
    }
  }
  QKV_ASSIGN_OR_RETURN(const ChainFlags::Chains chains, flags.chains.Load());
  if (const size_t all = chains.set.request.chains.size(); flags.first > all) {
    return {StatusCode::kInvalidArgument, fmt::format("--first {}: there are only {} conversations", flags.first, all)};
  }
  QKV_ASSIGN_OR_RETURN(const std::vector<FidelityLine> lines, Measure(flags, std::move(arms), chains));
  QKV_ASSIGN_OR_RETURN(const FidelitySummary summary, SummarizeHopKl(lines, std::move(against)));
  if (flags.json) {
    PrintJson({{"hops", summary.kinds}, {"summary", FidelityJson(summary)}});
  } else {
    PrintText(HopKlText(summary));
  }
  return {};
}

}  // namespace

Command AddEvalHops(CLI::App* eval) {
  auto flags = std::make_shared<HopsFlags>();
  CLI::App* app =
      eval->add_subcommand("hops", "What hand-overs cost hop by hop, in next-token distributions of the same answers");
  app->footer(kExample);
  flags->chains.AddTo(app);
  app->add_option("--conversations", flags->conversations,
                  "File of `eval chain --arm f16`, of the same flags; what it lacks is answered first")
      ->required()
      ->check(NotEmpty());
  app->add_option("--first", flags->first, "Conversations to measure, the first so many (default: all)")
      ->check(Count(1));
  app->add_option("--arm", flags->arms, "A way of handing over; may be repeated")
      ->check(NotEmpty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  app->add_option("--against", flags->against,
                  "An arm that the others are compared with; may be repeated (default: those of once)")
      ->check(NotEmpty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("-o,--output", flags->output, "Results, a line a hop and arm; an interrupted run goes on")
      ->check(NotEmpty());
  app->add_flag("--json", flags->json, "Summary as JSON");
  return [flags] {
    const Status status = RunEvalHops(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
