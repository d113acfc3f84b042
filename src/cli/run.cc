#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/stopwatch.h"
#include "card/card.h"
#include "card/card_chain.h"
#include "cli/chat.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/run.h"
#include "cli/terminal.h"
#include "runtime/generate.h"
#include "runtime/prompt.h"
#include "runtime/restore.h"
#include "runtime/sender.h"

namespace qkvshare::cli {
namespace {

// What was done and how long it took, for the report.
struct RunReport {
  std::string mode = "prefill";  // or "fused", "restore"
  std::string reason = "no card was given";
  std::string seam = "whole";
  std::vector<std::string> cards;  // files, in order
  size_t cached_tokens = 0;
  size_t evaluated_tokens = 0;
  size_t cache_rows = 0;                                                     // tokens in the cache at the end
  CacheType cache_type_k = CacheType::kF16, cache_type_v = CacheType::kF16;  // in effect
  bool flash_attention = true;
  std::vector<std::pair<std::string, int64_t>> stages;  // up to the first token
  Generation generation;
};

class Runner {
 public:
  explicit Runner(const RunFlags& flags) : flags_(flags) {}

  Status Run() {
    QKV_RETURN_IF_ERROR(Prepare());
    if (!cards_.empty()) QKV_RETURN_IF_ERROR(UseCards());
    const InterruptScope interrupt([this] { session_->Cancel(); });
    QKV_RETURN_IF_ERROR(PrefillRest());
    QKV_RETURN_IF_ERROR(GenerateText());
    if (!flags_.output.empty()) QKV_RETURN_IF_ERROR(SaveCard());
    report_.cache_rows = session_->tokens().size() - session_->attached();
    report_.cache_type_k = session_->cache_type_k();
    report_.cache_type_v = session_->cache_type_v();
    report_.flash_attention = session_->flash_attention();
    return {};
  }
  const RunReport& report() const { return report_; }

 private:
  Status Prepare() {
    QKV_RETURN_IF_ERROR(CheckOutput(flags_));
    if (!flags_.cards.empty()) {
      Stopwatch watch;
      QKV_ASSIGN_OR_RETURN(OpenedCards opened, OpenCards(flags_));
      cards_ = std::move(opened.parts);
      report_.cards = std::move(opened.paths);
      report_.stages.emplace_back("open_verify", watch.LapUs());
    }
    QKV_ASSIGN_OR_RETURN(model_, flags_.model.Load());
    for (const CardPart& part : cards_) QKV_RETURN_IF_ERROR(CheckCardModel(*part.card, *model_));
    QKV_RETURN_IF_ERROR(MakePrompt());
    SessionOptions options = SessionFor(flags_, FirstTokens(cards_, prompt_.cached));
    const size_t needed = prompt_.tokens.size() + flags_.generate.predict;
    if (options.context == 0) options.context = ContextFor(*model_, needed);
    QKV_ASSIGN_OR_RETURN(session_, Session::Create(*model_, options));
    QKV_RETURN_IF_ERROR(CheckDelta(flags_, FirstTokens(cards_, prompt_.cached), *session_));
    return session_->CheckRoomFor(prompt_.tokens.size(), session_->fused().ok() ? prompt_.cached : 0);
  }

  Status MakePrompt() {
    const bool whole = cards_.empty() || flags_.whole || !flags_.prompt.messages_file.empty();
    PromptFlags prompt_flags = flags_.prompt;
    if (!whole && !prompt_flags.system.empty()) {
      return {StatusCode::kInvalidArgument,
              "-sys starts a conversation, but the card's has started already; leave it out"};
    }
    // After a card, a turn continues its conversation instead of starting one.
    if (!whole) prompt_flags.chat = false;
    QKV_ASSIGN_OR_RETURN(Prompt prompt, ReadPrompt(prompt_flags, *model_, /*add_generation_prompt=*/true));
    const std::vector<int32_t> card_tokens = TokensOf(cards_);
    if (whole) {
      prompt_ = MatchPrompt(card_tokens, model_->Tokenize(prompt.text, /*add_special=*/true));
    } else if (flags_.prompt.chat) {
      const std::string card_text = EndsInAnswer(cards_) ? model_->Detokenize(card_tokens) : "";
      QKV_ASSIGN_OR_RETURN(const std::string turn, NextUserTurn(*model_, prompt.text, card_text));
      prompt_ = JoinPrompt(*model_, card_tokens, turn);
    } else {
      prompt_ = JoinPrompt(*model_, card_tokens, prompt.text);
    }
    report_.seam = prompt_.seam;
    messages_ = std::move(prompt.messages);
    return prompt_.tokens.empty() ? Status(StatusCode::kInvalidArgument, "the prompt is empty") : Status();
  }

  Status UseCards() {
    for (const CardPart& part : cards_) QKV_RETURN_IF_ERROR(CheckCardFits(*part.card, session_->card_context()));
    if (prompt_.cached == 0) {
      report_.reason = "the prompt and the card differ from the first token on";
      return {};
    }
    QKV_ASSIGN_OR_RETURN(const Injection injection,
                         InjectCards(FirstTokens(cards_, prompt_.cached), flags_.inject, session_.get()));
    report_.mode = InjectModeName(injection.mode);
    report_.reason = injection.reason;
    report_.cached_tokens = prompt_.cached;
    if (injection.mode == InjectMode::kFused) {
      report_.stages.emplace_back("attach", injection.attach_us);
    } else {
      report_.stages.emplace_back("dequantize", injection.dequantize_us);
      report_.stages.emplace_back("inject", injection.inject_us);
    }
    return {};
  }

  Status PrefillRest() {
    const auto rest = std::span(prompt_.tokens).subspan(report_.cached_tokens);
    report_.evaluated_tokens = rest.size();
    ProgressLine line("reading");
    // What is written is packed by the queries of its last tokens, those of the answer too.
    if (!flags_.output.empty() && session_->flash_attention()) {
      QKV_RETURN_IF_ERROR(session_->KeepQueries(kWindowTokens, kWindowStride));
    }
    PrefillOptions options;
    options.progress = [&](size_t done, size_t total) { line.Update(done, total, "tokens"); };
    Stopwatch watch;
    QKV_RETURN_IF_ERROR(session_->Prefill(rest, options));
    report_.stages.emplace_back("suffix_prefill", watch.LapUs());
    return {};
  }

  Status GenerateText() {
    if (flags_.json) {
      QKV_ASSIGN_OR_RETURN(report_.generation, Generate(session_.get(), flags_.generate));
    } else {
      QKV_ASSIGN_OR_RETURN(report_.generation, PrintAnswer(flags_.generate, session_.get()));
    }
    report_.stages.emplace_back("first_token", report_.generation.first_token_us);
    return {};
  }

  // All that was printed, and the end token if there was one.
  Status SaveCard() {
    session_->ResetCancel();
    const Status rest = DecodeRest(report_.generation, session_.get());
    if (rest.code() == StatusCode::kOutOfRange) {
      PrintNote("the context is full: the card holds all but the last token\n");
    } else if (rest.code() == StatusCode::kCancelled) {
      PrintNote("interrupted: the card holds all but the last token\n");
      report_.generation.stop = StopReason::kCancelled;
    } else {
      QKV_RETURN_IF_ERROR(rest);
    }
    const auto prompt_tokens = static_cast<uint32_t>(prompt_.tokens.size());
    std::vector<Segment> segments = SegmentsOf(*model_, messages_, prompt_.tokens, flags_.agent);
    if (segments.empty()) segments.push_back({"prompt", flags_.agent, "", 0, prompt_tokens});
    if (const auto all = static_cast<uint32_t>(session_->tokens().size()); all > prompt_tokens) {
      segments.push_back({kGeneratedRole, flags_.agent, "", prompt_tokens, all - prompt_tokens});
    }
    return WriteCard(flags_, *session_, SegmentsFrom(std::move(segments), session_->attached()));
  }

  const RunFlags& flags_;
  std::vector<CardPart> cards_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;   // after model_: it goes first
  std::vector<ChatMessage> messages_;  // that the prompt was made from, if it was
  JoinedPrompt prompt_;
  RunReport report_;
};

void PrintReport(const RunReport& report) {
  nlohmann::json stages = nlohmann::json::object();
  int64_t ttft_us = 0;
  for (const auto& [name, us] : report.stages) {
    stages[name] = us;
    ttft_us += us;
  }
  const nlohmann::json object = {{"text", report.generation.text},
                                 {"mode", report.mode},
                                 {"reason", report.reason},
                                 {"seam", report.seam},
                                 {"cards", report.cards},
                                 {"cached_tokens", report.cached_tokens},
                                 {"evaluated_tokens", report.evaluated_tokens},
                                 {"generated_tokens", report.generation.tokens.size()},
                                 {"cache_rows", report.cache_rows},
                                 {"cache_type_k", CacheTypeName(report.cache_type_k)},
                                 {"cache_type_v", CacheTypeName(report.cache_type_v)},
                                 {"flash_attention", report.flash_attention},
                                 {"stop", StopReasonName(report.generation.stop)},
                                 {"ttft_us", ttft_us},
                                 {"stages_us", stages}};
  PrintJson(object);
}

int RunOnce(const RunFlags& flags) {
  Runner runner(flags);
  const Status status = runner.Run();
  if (!status.ok()) return ReportError(status);
  const RunReport& report = runner.report();
  if (flags.json) {
    PrintReport(report);
  } else if (!flags.cards.empty()) {
    PrintNote(fmt::format("mode: {} ({}; {} tokens from the card, {} evaluated; K {}, V {}, flash attention {})\n",
                          report.mode, report.reason, report.cached_tokens, report.evaluated_tokens,
                          CacheTypeName(report.cache_type_k), CacheTypeName(report.cache_type_v),
                          report.flash_attention ? "on" : "off"));
  }
  if (OutputIsLost()) return kSuccess;  // which main reports
  return report.generation.stop == StopReason::kCancelled ? kInterrupted : kSuccess;
}

}  // namespace

Status CheckOutput(const RunFlags& flags) {
  if (flags.output.empty()) return {};
  PackOptions options;
  options.code_bits = flags.bits;
  QKV_RETURN_IF_ERROR(CheckPackOptions(options));
  return CheckCardTarget(flags.output, flags.model, flags.prompt);
}

Status CheckDelta(const RunFlags& flags, const std::vector<CardPart>& cards, const Session& session) {
  if (flags.output.empty() || cards.empty()) return {};
  if (session.fused().ok()) return ContextOf(cards).status();
  return {
      StatusCode::kUnsupported,
      fmt::format("-o together with --card writes what follows the card, which is possible only where attention goes "
                  "over the card itself (--inject fused): {}",
                  session.fused().message())};
}

Result<OpenedCards> OpenCards(const RunFlags& flags) {
  QKV_ASSIGN_OR_RETURN(const std::vector<ChainCard> chain, OpenWithParents(flags.cards));
  OpenedCards opened;
  std::vector<std::shared_ptr<const Card>> cards;
  for (const ChainCard& link : chain) {
    if (flags.verify) QKV_RETURN_IF_ERROR(link.card->VerifyDigests());
    cards.push_back(link.card);
    opened.paths.push_back(link.path);
  }
  if (!flags.output.empty()) QKV_RETURN_IF_ERROR(CheckTarget(flags.output, opened.paths));
  QKV_ASSIGN_OR_RETURN(opened.parts, PlaceCards(cards));
  if (!flags.json) PrintNote(FoundText(chain));
  return opened;
}

SessionOptions SessionFor(const RunFlags& flags, const std::vector<CardPart>& cards) {
  SessionOptions options = flags.model.session;
  if (cards.empty() || flags.inject == InjectMode::kRestore) return options;
  options.fused = true;
  options.card_tokens = cards.back().end();
  return options;
}

std::vector<Segment> SegmentsOfCards(const std::vector<CardPart>& cards) {
  std::vector<Segment> segments;
  for (const CardPart& part : cards) {
    for (Segment segment : part.card->info().segments) {
      if (segment.first_token >= part.tokens) break;
      segment.tokens = std::min(segment.tokens, part.tokens - segment.first_token);
      segment.first_token += part.offset;
      segments.push_back(std::move(segment));
    }
  }
  return segments;
}

bool EndsInAnswer(const std::vector<CardPart>& cards) {
  return cards.back().card->info().segments.back().role == kGeneratedRole;
}

Result<Generation> PrintAnswer(const GenerateOptions& generate, Session* session) {
  GenerateOptions options = generate;
  options.on_text = [session](const std::string& piece) {
    PrintText(piece);
    if (OutputIsLost()) session->Cancel();  // no one reads on
  };
  QKV_ASSIGN_OR_RETURN(Generation generation, Generate(session, options));
  PrintText("\n");
  return generation;
}

Status WriteCard(const RunFlags& flags, const Session& session, std::vector<Segment> segments) {
  PackOptions options;
  options.code_bits = flags.bits;
  options.sender = flags.agent;
  options.segments = std::move(segments);
  PackTimes times;
  QKV_ASSIGN_OR_RETURN(const PackedCard card, PackSession(session, options, &times));
  return card.Write(flags.output);
}

Command AddRun(CLI::App* app) {
  auto flags = std::make_shared<RunFlags>();
  app->footer(
      "Example:\n  qkvshare run -m smollm2-135m --card report.card --chat -p 'Who wrote the report?' --temp 0\n"
      "The prompt follows the card's text (--chat: as the user's next turn); with --whole or --messages it is the "
      "whole\n"
      "prompt, and the card covers what they share.");
  flags->model.AddTo(app);
  flags->prompt.AddTo(app);
  app->add_option("--card", flags->cards, "The card to continue from; repeated, each follows the one before")
      ->check(NotEmpty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  AddInject(app, &flags->inject)->needs("--card");
  app->add_flag("--whole", flags->whole, "The prompt is the whole prompt, not what follows the card")->needs("--card");
  app->add_flag("--verify", flags->verify, "Also check the card's digests (always done for other users' cards)")
      ->needs("--card");
  app->add_option(
         "-o,--output", flags->output,
         "Write a card of prompt and generated text (after Ctrl-C or SIGTERM too); with --card, of what follows it")
      ->check(NotEmpty());
  app->add_option("--bits", flags->bits, "Of that card: average bits, 2 to 16")
      ->needs("--output")
      ->capture_default_str();
  app->add_option("--agent", flags->agent, "The sender's name, kept in that card")
      ->needs("--output")
      ->capture_default_str();
  app->add_option("-n,--predict", flags->generate.predict, "Tokens to generate at most")
      ->check(Count(0))
      ->capture_default_str();
  app->add_option("--temp", flags->generate.sampling.temp, "Temperature (0: greedy)")
      ->check(Finite(-1e6, 1e6))
      ->capture_default_str();
  app->add_option("--top-k", flags->generate.sampling.top_k, "Top-k sampling")->capture_default_str();
  app->add_option("--top-p", flags->generate.sampling.top_p, "Top-p sampling")
      ->check(Finite(0, 1))
      ->capture_default_str();
  app->add_option("--min-p", flags->generate.sampling.min_p, "Min-p sampling")
      ->check(Finite(0, 1))
      ->capture_default_str();
  app->add_option("-s,--seed", flags->generate.sampling.seed, "Seed (4294967295: random)")->capture_default_str();
  app->add_flag("--json", flags->json, "Report as JSON: text, cached_tokens, evaluated_tokens, mode, reason, stages");
  app->add_flag("-i,--interactive", flags->interactive,
                "Chat: each line of standard input is the user's next turn; a prompt that is given is the first")
      ->excludes("--json")
      ->excludes("--whole")
      ->excludes("--messages");
  return [flags] {
    IgnoreBrokenPipes();  // a card that was asked for is written all the same
    return flags->interactive ? RunChat(*flags) : RunOnce(*flags);
  };
}

}  // namespace qkvshare::cli
