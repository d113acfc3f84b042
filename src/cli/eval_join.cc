#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "cli/eval.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "eval/join.h"
#include "runtime/prompt.h"

namespace qkvshare::cli {
namespace {

constexpr const char* kExample =
    "Example:\n  qkvshare eval join -f first.txt -f second.txt --chat -p 'What do both say of the weather?'\n"
    "  qkvshare eval join -f report.txt --pieces 4 -p ' In short:'\n"
    "Each document is prefilled for itself and becomes a card; the cards are joined as `run --card A --card B` does "
    "it.";

struct JoinFlags {
  ModelFlags model;
  std::vector<std::string> files;
  size_t pieces = 1;
  std::vector<std::string> questions;
  bool chat = false;
  JoinRequest request;
  bool json = false;
};

// Cut after the line breaks that are nearest to equal parts.
std::vector<std::string> Cut(const std::string& text, size_t pieces) {
  std::vector<std::string> cut;
  size_t from = 0;
  for (size_t i = 1; i < pieces; ++i) {
    const size_t aim = std::max(text.size() * i / pieces, from);
    const size_t before = text.rfind('\n', aim), after = text.find('\n', aim);
    size_t end = after == std::string::npos ? text.size() : after + 1;
    if (before != std::string::npos && before + 1 > from && aim - before < end - aim) end = before + 1;
    cut.push_back(text.substr(from, end - from));
    from = end;
  }
  cut.push_back(text.substr(from));
  return cut;
}

Result<std::vector<std::string>> ReadDocuments(const JoinFlags& flags) {
  if (flags.pieces > 1 && flags.files.size() > 1)
    return Status(StatusCode::kInvalidArgument, "--pieces cuts one file: give one -f");
  std::vector<std::string> documents;
  for (const std::string& file : flags.files) {
    QKV_ASSIGN_OR_RETURN(const std::string text, ReadText(file, size_t{1} << 26));
    if (const Status status = CheckUtf8(text); !status.ok())
      return Status(status.code(), fmt::format("{}: {}", file, status.message()));
    for (std::string& piece : Cut(text, flags.pieces)) {
      if (piece.empty()) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("{}: there are not enough lines for {} documents", file, flags.pieces));
      }
      documents.push_back(std::move(piece));
    }
  }
  return documents;
}

// The tokens of each document as `pack` (--chat: as a user's message) has them, and of each question as it follows
// them.
Result<JoinRequest> RequestOf(const JoinFlags& flags, const Model& model, const std::vector<std::string>& documents) {
  JoinRequest request = flags.request;
  for (std::string text : documents) {
    if (flags.chat) {
      QKV_ASSIGN_OR_RETURN(text, model.ApplyChatTemplate({{"user", text}}, /*add_generation_prompt=*/false));
    }
    request.documents.push_back(model.Tokenize(text, /*add_special=*/true));
  }
  for (std::string question : flags.questions) {
    if (flags.chat) {
      QKV_ASSIGN_OR_RETURN(question, NextUserTurn(model, question, ""));
    }
    request.questions.push_back(model.Tokenize(question, /*add_special=*/false));
  }
  return request;
}

nlohmann::ordered_json FidelityJson(const Fidelity& fidelity) {
  return {{"tokens", fidelity.tokens}, {"mean_kl", fidelity.mean_kl}, {"median_kl", fidelity.median_kl},
          {"p99_kl", fidelity.p99_kl}, {"max_kl", fidelity.max_kl},   {"top1_agreement", fidelity.top1_agreement}};
}

nlohmann::ordered_json WayJson(const JoinWay& way) {
  return {{"name", way.name},
          {"questions", FidelityJson(way.questions)},
          {"answers", FidelityJson(way.answers)},
          {"texts", way.texts}};
}

nlohmann::ordered_json ReportJson(const JoinRequest& request, const JoinReport& report) {
  nlohmann::ordered_json ways = nlohmann::ordered_json::array();
  for (const JoinWay& way : report.ways) ways.push_back(WayJson(way));
  nlohmann::ordered_json json = {{"card_tokens", report.card_tokens},
                                 {"card_bytes", report.card_bytes},
                                 {"bits", request.code_bits},
                                 {"answers", report.answers},
                                 {"ways", ways}};
  if (!report.between.name.empty()) json["fused_vs_restored"] = WayJson(report.between);
  return json;
}

void PrintWay(const JoinWay& way, const std::string& name) {
  const auto columns = [](const Fidelity& f) {
    return f.tokens == 0 ? fmt::format("{:>26}", "-")
                         : fmt::format("{:>9.5f} {:>9.5f} {:>5.1f}%", f.mean_kl, f.p99_kl, 100 * f.top1_agreement);
  };
  fmt::print("  {:<22} {}   {}\n", name, columns(way.questions), columns(way.answers));
}

void PrintReport(const JoinRequest& request, const JoinReport& report, const std::vector<std::string>& questions) {
  const size_t tokens = std::accumulate(report.card_tokens.begin(), report.card_tokens.end(), size_t{0});
  const size_t bytes = std::accumulate(report.card_bytes.begin(), report.card_bytes.end(), size_t{0});
  fmt::print("{} of {} tokens ({} in all); their cards at {} bits: {}\n",
             Counted(report.card_tokens.size(), "document"), fmt::join(report.card_tokens, ", "), tokens,
             request.code_bits, FormatBytes(bytes));
  fmt::print("\nNext-token distributions against one prefill of all of it: KL in nats, same most likely token\n");
  fmt::print("  {:<22} {:^26}   {:^26}\n", "",
             fmt::format("questions ({})", Counted(report.ways[0].questions.tokens, "token")),
             fmt::format("answers ({})", Counted(report.ways[0].answers.tokens, "token")));
  fmt::print("  {:<22} {:>9} {:>9} {:>6}   {:>9} {:>9} {:>6}\n", "", "mean", "p99", "same", "mean", "p99", "same");
  for (const JoinWay& way : report.ways) PrintWay(way, way.name);
  if (!report.between.name.empty()) PrintWay(report.between, "joined: fused/restore");
  fmt::print(
      "  noise floor: the same prefill, questions and answers token by token\n"
      "  one card: the joint prefill packed at {} bits: what the codec costs\n"
      "  joined exact: a card of 16 bits for each document: what it costs that none has seen the others\n"
      "  joined: the same at {} bits: both\n"
      "  nothing: the questions without documents\n",
      request.code_bits, request.code_bits);
  for (size_t i = 0; i < report.answers.size(); ++i) {
    fmt::print("\nQ: {}\n  {:<22} {}\n", Printable(questions[i]), "joint prefill", Printable(report.answers[i]));
    for (const JoinWay& way : report.ways) {
      if (!way.texts.empty()) fmt::print("  {:<22} {}\n", way.name, Printable(way.texts[i]));
    }
  }
}

Status RunJoin(const JoinFlags& flags) {
  const SessionOptions& cache = flags.model.session;
  if (cache.cache_type_k != CacheType::kF16 || cache.cache_type_v != CacheType::kF16) {
    return {StatusCode::kInvalidArgument, "eval join compares with an F16 prefill: leave out -ctk and -ctv"};
  }
  QKV_ASSIGN_OR_RETURN(const std::vector<std::string> documents, ReadDocuments(flags));
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, flags.model.Load());
  QKV_ASSIGN_OR_RETURN(JoinRequest request, RequestOf(flags, *model, documents));
  size_t tokens = request.predict;
  for (const auto* texts : {&request.documents, &request.questions}) {
    for (const std::vector<int32_t>& text : *texts) tokens += text.size();
  }
  SessionOptions options = flags.model.session;
  if (options.context == 0) options.context = ContextFor(*model, tokens);
  options.fused = request.inject != InjectMode::kRestore;
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Create(*model, options));
  if (options.fused && !session->fused().ok() && request.inject == InjectMode::kAuto)
    PrintNote(fmt::format("without cards attached: {}\n", session->fused().message()));
  JoinReport report;
  {
    const InterruptScope interrupt([&] { session->Cancel(); });
    ProgressLine line("measuring ");
    request.on_step = [&](const std::string& step) { line.Note(step); };
    QKV_ASSIGN_OR_RETURN(report, MeasureJoin(session.get(), request));
  }
  if (flags.json) {
    PrintJson(ReportJson(request, report));
  } else {
    PrintReport(request, report, flags.questions);
  }
  return {};
}

}  // namespace

Command AddEvalJoin(CLI::App* eval) {
  auto flags = std::make_shared<JoinFlags>();
  CLI::App* app = eval->add_subcommand(
      "join", "What it costs to join cards of documents that were prefilled each for itself, against one prefill");
  app->footer(kExample);
  flags->model.AddTo(app);
  app->add_option("-f,--file", flags->files, "A document; repeated, one after the other")
      ->required()
      ->check(NotEmpty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--pieces", flags->pieces, "Cuts the file into so many documents, between lines")
      ->check(Count(1, 1000))
      ->capture_default_str();
  app->add_option("-p,--prompt", flags->questions, "A question that follows them; repeated, each follows them anew")
      ->required()
      ->check(NotEmpty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_flag("--chat", flags->chat, "Documents are messages of the user, and each question is the next one");
  app->add_option("--bits", flags->request.code_bits, "Average bits of the cards, 2 to 16")
      ->check(Finite(2, 16))
      ->capture_default_str();
  AddInject(app, &flags->request.inject);
  app->add_option("-n,--predict", flags->request.predict, "Tokens of the answer at most")
      ->check(Count(1))
      ->capture_default_str();
  app->add_flag("--json", flags->json, "Report as JSON");
  return [flags] {
    const Status status = RunJoin(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
