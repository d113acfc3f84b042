#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "card/card.h"
#include "cli/eval.h"
#include "cli/memory_processes.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "eval/handoff.h"

namespace qkvshare::cli {
namespace {

constexpr const char* kExample =
    "Example:\n  qkvshare pack -f report.txt -o report.card --state-output report.state\n"
    "  qkvshare eval handoff --card report.card --state report.state -q 'Who wrote the report?'";

struct EvalFlags {
  ModelFlags model;
  HandoffRequest request;
  std::vector<std::string> known_answer;
  bool json = false;
};

nlohmann::json FidelityJson(const Fidelity& fidelity) {
  return {{"tokens", fidelity.tokens}, {"mean_kl", fidelity.mean_kl}, {"median_kl", fidelity.median_kl},
          {"p99_kl", fidelity.p99_kl}, {"max_kl", fidelity.max_kl},   {"top1_agreement", fidelity.top1_agreement}};
}

nlohmann::json ReportJson(const Card& card, const HandoffReport& report) {
  nlohmann::json questions = nlohmann::json::array();
  for (const HandoffQuestion& question : report.questions) {
    nlohmann::json arms = nlohmann::json::array();
    for (const HandoffArm& arm : question.arms) {
      nlohmann::json stages = nlohmann::json::object();
      for (const Stage& stage : arm.stages) stages[stage.name] = stage.us;
      arms.push_back({{"name", arm.name},
                      {"ttft_us", arm.ttft_us()},
                      {"stages_us", stages},
                      {"cached_tokens", arm.cached_tokens},
                      {"evaluated_tokens", arm.evaluated_tokens},
                      {"answer", arm.answer}});
    }
    questions.push_back({{"question", question.text}, {"arms", arms}});
  }
  nlohmann::json json = {{"tokens", card.tokens()},
                         {"card_bytes", card.file_bytes()},
                         {"f16_state_bytes", report.state_bytes},
                         {"code_bits", card.average_code_bits()},
                         {"total_bits", card.average_total_bits()},
                         {"questions", questions},
                         {"card_vs_f16", FidelityJson(report.card)},
                         {"noise_floor", FidelityJson(report.noise_floor)}};
  if (report.fused.tokens > 0) json["fused_vs_f16"] = FidelityJson(report.fused);
  return json;
}

// Mean over the questions of each stage of one arm, in the order of the stages.
HandoffArm MeanArm(const HandoffReport& report, size_t index) {
  HandoffArm mean = report.questions[0].arms[index];
  for (size_t i = 0; i < mean.stages.size(); ++i) {
    int64_t sum = 0;
    for (const HandoffQuestion& question : report.questions) sum += question.arms[index].stages[i].us;
    mean.stages[i].us = sum / static_cast<int64_t>(report.questions.size());
  }
  return mean;
}

void PrintReport(const Card& card, const HandoffReport& report, size_t repeats) {
  fmt::print("Time to first token (mean of {}; but for re-prefill, the median of {})\n",
             Counted(report.questions.size(), "question"), Counted(repeats, "run"));
  const int64_t baseline_us = MeanArm(report, 0).ttft_us();
  for (size_t i = 0; i < report.questions[0].arms.size(); ++i) {
    const HandoffArm arm = MeanArm(report, i);
    fmt::print("  {:<13} {:>9}  {:>6.1f}x ", arm.name, FormatUs(arm.ttft_us()),
               static_cast<double>(baseline_us) / static_cast<double>(arm.ttft_us()));
    for (size_t s = 0; s < arm.stages.size(); ++s)
      fmt::print("{} {} {}", s == 0 ? "" : ",", arm.stages[s].name, FormatUs(arm.stages[s].us));
    fmt::print("\n");
  }
  fmt::print("\nBytes for {} tokens\n", card.tokens());
  fmt::print("  F16 state     {:>9}\n", FormatBytes(report.state_bytes));
  fmt::print("  card          {:>9}  {:.2f} times smaller, {:.2f} bits a channel, {:.2f} with everything\n",
             FormatBytes(card.file_bytes()),
             static_cast<double>(report.state_bytes) / static_cast<double>(card.file_bytes()), card.average_code_bits(),
             card.average_total_bits());
  fmt::print("\nNext-token distributions against the F16 hand-over ({})\n", Counted(report.card.tokens, "token"));
  fmt::print("                mean KL   median      p99    worst   same top token\n");
  for (const auto& [name, f] : {std::pair{"card restored", report.card}, std::pair{"card fused", report.fused},
                                std::pair{"noise floor", report.noise_floor}}) {
    if (f.tokens == 0) continue;  // not measured
    fmt::print("  {:<13} {:>8.5f} {:>8.5f} {:>8.5f} {:>8.5f}   {:.1f}%\n", name, f.mean_kl, f.median_kl, f.p99_kl,
               f.max_kl, 100 * f.top1_agreement);
  }
  fmt::print("  (noise floor: the F16 hand-over against itself, suffix in pieces of 16 tokens)\n");
  for (const HandoffQuestion& question : report.questions) {
    fmt::print("\nQ: {}\n", question.text);
    for (const HandoffArm& arm : question.arms) fmt::print("  {:<13} {}\n", arm.name, arm.answer);
  }
}

Status RunHandoff(const EvalFlags& flags) {
  const SessionOptions& cache = flags.model.session;
  if (cache.cache_type_k != CacheType::kF16 || cache.cache_type_v != CacheType::kF16) {
    return {StatusCode::kInvalidArgument, "eval handoff compares with llama.cpp's F16 state: leave out -ctk and -ctv"};
  }
  QKV_ASSIGN_OR_RETURN(const Card card, Card::Open(flags.request.card_path));
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, flags.model.Load());
  SessionOptions options = flags.model.session;
  if (options.context == 0) options.context = ContextFor(*model, card.tokens() + 512 + flags.request.predict);
  options.fused = true;
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Create(*model, options));
  if (!session->fused().ok()) PrintNote(fmt::format("without the card fused: {}\n", session->fused().message()));
  HandoffReport report;
  {
    const InterruptScope interrupt([&] { session->Cancel(); });
    ProgressLine line("measuring ");
    HandoffRequest request = flags.request;
    if (!flags.known_answer.empty()) {
      QKV_ASSIGN_OR_RETURN(const std::string answer, ReadText(flags.known_answer[1], 1 << 20));
      request.known_answers.emplace_back(flags.known_answer[0], answer);
    }
    request.on_step = [&](const std::string& step) { line.Note(step); };
    QKV_ASSIGN_OR_RETURN(report, MeasureHandoff(session.get(), request));
  }
  if (flags.json) {
    PrintJson(ReportJson(card, report));
  } else {
    PrintReport(card, report, flags.request.repeats);
  }
  return {};
}

}  // namespace

Command AddEval(CLI::App* app) {
  auto flags = std::make_shared<EvalFlags>();
  app->require_subcommand(1);
  CLI::App* handoff =
      app->add_subcommand("handoff", "Time to first token and fidelity of one hand-over, against its alternatives");
  for (CLI::App* command : {app, handoff}) command->footer(kExample);
  flags->model.AddTo(handoff);
  handoff->add_option("--card", flags->request.card_path, "The sender's card")->required()->check(NotEmpty());
  handoff->add_option("--state", flags->request.state_path, "The sender's F16 state (pack --state-output)")->required();
  handoff->add_option("-q,--question", flags->request.questions, "The user's next turn; may be repeated")->required();
  handoff
      ->add_option("--known-answer", flags->known_answer,
                   "A turn and a file with its answer, for more tokens to compare")
      ->type_name("QUESTION FILE")
      ->expected(2);
  handoff->add_option("-n,--predict", flags->request.predict, "Tokens of an answer at most")
      ->check(Count(0))
      ->capture_default_str();
  handoff->add_option("--repeats", flags->request.repeats, "Runs of each way but re-prefill; the median counts")
      ->capture_default_str();
  handoff->add_flag("--json", flags->json, "Report as JSON");
  const Command speed = AddEvalSpeed(app);
  const Command join = AddEvalJoin(app);
  const Command fidelity = AddEvalFidelity(app);
  const Command chain = AddEvalChain(app);
  const Command hops = AddEvalHops(app);
  const Command ttft = AddEvalTtft(app);
  const Command memory = AddEvalMemory(app);
  const Command sensitivity = AddEvalSensitivity(app);
  // What `eval memory` starts: no command for people.
  CLI::App* process = app->add_subcommand("memory-process", "")->group("");
  return [app, flags, speed, join, fidelity, chain, hops, ttft, memory, sensitivity, process] {
    if (app->got_subcommand("speed")) return speed();
    if (app->got_subcommand("join")) return join();
    if (app->got_subcommand("fidelity")) return fidelity();
    if (app->got_subcommand("chain")) return chain();
    if (app->got_subcommand("hops")) return hops();
    if (app->got_subcommand("ttft")) return ttft();
    if (app->got_subcommand("memory")) return memory();
    if (app->got_subcommand("sensitivity")) return sensitivity();
    if (process->parsed()) return RunMemoryProcess();
    const Status status = RunHandoff(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
