#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"
#include "base/stopwatch.h"
#include "card/card.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/policy_flags.h"
#include "cli/terminal.h"
#include "eval/card_loss.h"
#include "runtime/score_error.h"
#include "runtime/sender.h"

namespace qkvshare::cli {
namespace {

struct PackFlags {
  ModelFlags model;
  PromptFlags prompt;
  PolicyFlags policy;
  std::string output;
  std::string agent = "agent";
  std::string state_output;
  bool generation_prompt = false;
  bool json = false;
};

struct PackResult {
  size_t tokens = 0;
  int64_t prefill_us = 0;
  int64_t predictions_us = 0;  // logits to features
  PackTimes times;
  int64_t write_us = 0;
  std::shared_ptr<const Card> card;  // what is reported is what was written
  ScoreError score_error;
  std::optional<Fidelity> loss;  // where the scores' error is suspect
};

constexpr size_t kLossTokens = 32;
constexpr double kGarblingKl = 0.2;  // cards of 2 bits that read well have at most a quarter of it

// What the flags of the cache leave no room for.
Status CheckCacheFlags(const PackFlags& flags, Policy policy) {
  const SessionOptions& session = flags.model.session;
  const bool is_f16 = session.cache_type_k == CacheType::kF16 && session.cache_type_v == CacheType::kF16;
  if (!flags.state_output.empty() && !is_f16)
    return {StatusCode::kInvalidArgument, "--state-output writes an F16 state: leave out -ctk and -ctv"};
  if (policy != Policy::kUniform && !session.flash_attention)
    return {StatusCode::kInvalidArgument, "policies that look at attention need flash attention: leave out -fa off"};
  return {};
}

const std::string kStateMagic = "\xD8\x3C\x14\xAF";  // of a sequence's state

// No output is an input, nor the other output, nor overwrites anything else.
Status CheckOutputs(const PackFlags& flags) {
  const std::vector<std::string> inputs = flags.policy.InputFiles();
  QKV_RETURN_IF_ERROR(CheckCardTarget(flags.output, flags.model, flags.prompt));
  QKV_RETURN_IF_ERROR(CheckTarget(flags.output, inputs));
  if (flags.state_output.empty()) return {};
  QKV_RETURN_IF_ERROR(CheckTarget(flags.state_output, flags.model, flags.prompt));
  QKV_RETURN_IF_ERROR(CheckTarget(flags.state_output, inputs));
  QKV_RETURN_IF_ERROR(CheckKind(flags.state_output, kStateMagic, "a state of llama.cpp"));
  std::error_code error;
  const auto place = [&](const std::string& path) { return std::filesystem::weakly_canonical(path, error); };
  if (place(flags.state_output) != place(flags.output)) return {};
  return {StatusCode::kInvalidArgument, "-o and --state-output name the same file"};
}

// Prefills, and adds to the options what their policy needs to know of it.
Status PrefillPrompt(const std::vector<int32_t>& tokens, Session* session, PackOptions* options, PackResult* result) {
  const InterruptScope interrupt([&] { session->Cancel(); });
  ProgressLine line("reading");
  PrefillOptions prefill;
  KeepForPacking(*session, &prefill);
  PredictionMeter meter(session->model(), tokens);
  if (options->features.NeedsPredictions()) {
    prefill.logits = [&](size_t token, const float* logits) { meter.Add(token, logits); };
  }
  prefill.progress = [&](size_t done, size_t total) { line.Update(done, total, "tokens"); };
  Stopwatch watch;
  QKV_RETURN_IF_ERROR(session->Prefill(tokens, prefill));
  result->tokens = tokens.size();
  result->predictions_us = meter.us();
  result->prefill_us = watch.LapUs() - meter.us();
  if (options->features.NeedsPredictions()) options->predictions = meter.Take();
  return {};
}

// Whether the card is worth what it takes: some models' keys lie so far apart that few bits garble what they hand over.
Status CheckCard(Session* session, PackResult* result) {
  const PackSource source{session->card_context(), session->tokens(), &session->window(), 0};
  QKV_ASSIGN_OR_RETURN(result->score_error, MeasureScoreError(source, *result->card));
  if (result->score_error.rms < kSuspectScoreError || result->tokens < 2) return {};
  QKV_ASSIGN_OR_RETURN(result->loss, MeasureCardLoss(session, result->card, kLossTokens));
  if (result->loss->mean_kl < kGarblingKl) return {};
  PrintNote(fmt::format(
      "warning: this card garbles what it hands over: next-token distributions of its last {} tokens have a mean KL of "
      "{:.3g} from those of FP16, {:.0f}% the same most likely token. This model's keys lie far apart (attention "
      "scores "
      "are off by {:.2g}, most in layer {}): give more --bits, up to 16\n",
      result->loss->tokens, result->loss->mean_kl, 100 * result->loss->top1_agreement, result->score_error.rms,
      result->score_error.worst_layer));
  return {};
}

Status PackPrompt(const PackFlags& flags, PackResult* result) {
  QKV_RETURN_IF_ERROR(CheckOutputs(flags));
  if (flags.generation_prompt && !flags.prompt.chat && flags.prompt.messages_file.empty()) {
    return {StatusCode::kInvalidArgument, "--generation-prompt goes with --chat or --messages"};
  }
  QKV_ASSIGN_OR_RETURN(PackOptions options, flags.policy.Options());
  options.sender = flags.agent;
  QKV_RETURN_IF_ERROR(CheckCacheFlags(flags, options.policy));
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, flags.model.Load());
  QKV_ASSIGN_OR_RETURN(const Prompt prompt, ReadPrompt(flags.prompt, *model, flags.generation_prompt));
  const std::vector<int32_t> tokens = model->Tokenize(prompt.text, /*add_special=*/true);
  if (tokens.empty()) return {StatusCode::kInvalidArgument, "the prompt is empty: there is nothing to pack"};
  options.segments = SegmentsOf(*model, prompt.messages, tokens, flags.agent);
  QKV_RETURN_IF_ERROR(flags.policy.AddReaders(flags.agent, tokens.size(), &options.segments));
  QKV_RETURN_IF_ERROR(flags.policy.AddAnchors(tokens, &options.anchors));
  SessionOptions session_options = flags.model.session;
  if (session_options.context == 0) session_options.context = ContextFor(*model, tokens.size());
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::Create(*model, session_options));
  QKV_ASSIGN_OR_RETURN(options.layers, flags.policy.Layers(session->state_layout().shapes.size()));
  if (options.profile != nullptr) {
    QKV_RETURN_IF_ERROR(CheckProfileFits(*options.profile, session->identity(), session->state_layout().shapes));
  }
  // Until all is written: a file is there whole or not at all.
  std::atomic<bool> interrupted{false};
  const InterruptScope interrupt([&] { interrupted = true; });
  QKV_RETURN_IF_ERROR(PrefillPrompt(tokens, session.get(), &options, result));
  QKV_ASSIGN_OR_RETURN(const PackedCard card, PackSession(*session, options, &result->times));
  if (interrupted) return {StatusCode::kCancelled, "interrupted; nothing was written"};
  Stopwatch watch;
  QKV_RETURN_IF_ERROR(card.Write(flags.output));
  result->write_us = watch.LapUs();
  QKV_ASSIGN_OR_RETURN(Card written, Card::Open(flags.output));
  result->card = std::make_shared<const Card>(std::move(written));
  if (!flags.state_output.empty()) {
    QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> state, session->SaveState());
    QKV_RETURN_IF_ERROR(WriteFileAtomic(flags.state_output, {state}));
  }
  const InterruptScope cancel([&] { session->Cancel(); });
  const Status checked = CheckCard(session.get(), result);
  if (checked.code() == StatusCode::kCancelled)
    return {StatusCode::kCancelled, fmt::format("interrupted; {} is written, but was not checked", flags.output)};
  if (!checked.ok()) {
    PrintNote(fmt::format("note: {} is written, but what it loses could not be measured: {}\n", flags.output,
                          Printable(checked.message())));
  }
  return {};
}

Status RunPack(const PackFlags& flags) {
  PackResult result;
  QKV_RETURN_IF_ERROR(PackPrompt(flags, &result));
  const Card& card = *result.card;
  if (flags.json) {
    nlohmann::json object = {{"card", flags.output},
                             {"content_id", ToHex(card.content_id())},
                             {"tokens", result.tokens},
                             {"policy", card.info().policy},
                             {"features", card.info().features},
                             {"protected_tokens", card.protected_tokens()},
                             {"levels", LevelsJson(card)},
                             {"profile", ProfileText(card)},
                             {"file_bytes", card.file_bytes()},
                             {"f16_bytes", card.fp16_bytes()},
                             {"code_bits", card.average_code_bits()},
                             {"total_bits", card.average_total_bits()},
                             {"score_error", result.score_error.rms},
                             {"stages_us",
                              {{"prefill", result.prefill_us},
                               {"take", result.times.take_us},
                               {"plan", result.times.plan_us},
                               {"quantize", result.times.quantize_us},
                               {"write", result.write_us}}}};
    if (result.loss) {
      object["loss"] = {
          {"tokens", result.loss->tokens}, {"mean_kl", result.loss->mean_kl}, {"same", result.loss->top1_agreement}};
    }
    if (result.predictions_us > 0) object["stages_us"]["predictions"] = result.predictions_us;
    PrintJson(object);
    return {};
  }
  fmt::print("{}: {} tokens, {} (F16: {}), {:.2f} bits a channel, {:.2f} with everything, policy {}\n", flags.output,
             result.tokens, FormatBytes(card.file_bytes()), FormatBytes(card.fp16_bytes()), card.average_code_bits(),
             card.average_total_bits(), card.info().policy);
  fmt::print("prefill {}, {}take {}, plan {}, quantize {}, write {}\n", FormatUs(result.prefill_us),
             result.predictions_us > 0 ? fmt::format("predictions {}, ", FormatUs(result.predictions_us)) : "",
             FormatUs(result.times.take_us), FormatUs(result.times.plan_us), FormatUs(result.times.quantize_us),
             FormatUs(result.write_us));
  return {};
}

}  // namespace

Command AddPack(CLI::App* app) {
  auto flags = std::make_shared<PackFlags>();
  app->footer(
      "Example:\n  qkvshare pack -m smollm2-135m -f report.txt -o report.card\n"
      "  echo 'Some text' | qkvshare pack -o text.card --policy local --bits 5");
  flags->model.AddTo(app);
  flags->prompt.AddTo(app);
  app->add_option("-o,--output", flags->output, "The card to write")->required()->check(NotEmpty());
  flags->policy.AddTo(app);
  app->add_option("--agent", flags->agent, "The sender's name, kept in the card")->capture_default_str();
  app->add_flag("--generation-prompt", flags->generation_prompt,
                "With --chat or --messages: end with the start of the assistant's turn");
  app->add_option("--state-output", flags->state_output,
                  "Also write llama.cpp's F16 state of the same tokens, to compare with")
      ->check(NotEmpty());
  app->add_flag("--json", flags->json, "Report as JSON");
  return [flags] {
    const Status status = RunPack(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
