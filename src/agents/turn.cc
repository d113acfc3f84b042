#include "agents/turn.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "agents/earlier_anchors.h"
#include "base/hash.h"
#include "base/stopwatch.h"
#include "card/card.h"
#include "card/card_slice.h"
#include "policy/attention_window.h"
#include "runtime/card_list.h"
#include "runtime/generate.h"
#include "runtime/inject.h"
#include "runtime/probe_queries.h"
#include "runtime/prompt.h"
#include "runtime/restore.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

constexpr std::string_view kGenerated = kOwnRoles[2];

// First tokens of a context that receive much attention whatever they say (attention sinks). Who is given parts of it
// only gets these too.
constexpr auto kStartTokens = static_cast<uint32_t>(kSinkTokens);

class TurnRunner {
 public:
  TurnRunner(const Model& model, const TurnJob& job, const TurnHooks& hooks) : model_(model), job_(job), hooks_(hooks) {
    record_.turn = job.turn;
    record_.agent = job.agent.name;
    record_.prompt = job.agent.prompt;
    record_.taken = job.taken;
  }

  Result<TurnRecord> Run() {
    QKV_RETURN_IF_ERROR(OpenCards());
    QKV_RETURN_IF_ERROR(MakePrompt());
    QKV_RETURN_IF_ERROR(MakeSession());
    QKV_RETURN_IF_ERROR(TakeOver());
    QKV_RETURN_IF_ERROR(Read());
    QKV_RETURN_IF_ERROR(Speak());
    QKV_RETURN_IF_ERROR(Pack());
    return std::move(record_);
  }

 private:
  std::string PathOf(const std::string& file) const { return (std::filesystem::path(job_.folder) / file).string(); }
  void AddStage(const char* name) { record_.stages.emplace_back(name, watch_.LapUs()); }
  bool StartsContext() const { return parts_.empty(); }
  bool Speaks() const { return job_.agent.predict > 0; }

  Status OpenCards() {
    watch_.LapUs();
    for (const HandedCard& handed : job_.taken) {
      QKV_ASSIGN_OR_RETURN(Card card, Card::Open(PathOf(handed.path)));
      if (ToHex(card.content_id()) != handed.id) {
        return {StatusCode::kCorrupt,
                fmt::format("{} is not the card that was handed over, which is {}", handed.path, handed.id)};
      }
      QKV_RETURN_IF_ERROR(CheckCardModel(card, model_));
      record_.taken_bytes += card.file_bytes() * handed.tokens / std::max(card.tokens(), 1u);
      QKV_RETURN_IF_ERROR(AppendCard(std::make_shared<const Card>(std::move(card)), &parts_));
      parts_.back().tokens = std::min(parts_.back().tokens, handed.tokens);
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].tokens == job_.taken[i].tokens) continue;
      return {StatusCode::kCorrupt, job_.taken[i].path + " is handed over in other parts than it was used in"};
    }
    record_.taken_tokens = StartsContext() ? 0 : parts_.back().end();
    if (!StartsContext()) AddStage("open");
    return {};
  }

  // Own tokens are tokenized by themselves: what was taken over stays as it is.
  Status MakePrompt() {
    std::string text;
    if (StartsContext()) {
      if (!job_.agent.system.empty()) messages_.push_back({"system", job_.agent.system});
      messages_.push_back({"user", job_.agent.prompt});
      QKV_ASSIGN_OR_RETURN(text, model_.ApplyChatTemplate(messages_, Speaks()));
    } else {
      QKV_ASSIGN_OR_RETURN(text, NextUserTurn(model_, job_.agent.prompt, OpenTurn(), Speaks()));
    }
    prompt_ = model_.Tokenize(text, /*add_special=*/StartsContext());
    return prompt_.empty() ? Status(StatusCode::kInvalidArgument, "the prompt is empty") : Status();
  }

  // What the assistant has said, where the context ends within its turn.
  std::string OpenTurn() const {
    const CardPart& last = parts_.back();
    const Segment& segment = last.card->info().segments.back();
    if (segment.role != kGenerated) return "";
    const std::span<const int32_t> tokens = last.card->token_ids().subspan(segment.first_token);
    return model_.Detokenize({tokens.begin(), tokens.end()});
  }

  Status MakeSession() {
    SessionOptions options = job_.session;
    options.fused = !StartsContext();
    options.card_tokens = record_.taken_tokens;
    options.cancel = hooks_.cancel;
    const size_t before = record_.taken_tokens + prompt_.size();
    if (options.context == 0) options.context = ContextFor(model_, before + job_.agent.predict + ProbeRoom());
    QKV_ASSIGN_OR_RETURN(session_, Session::Create(model_, options));
    AddStage("context");
    if (!StartsContext() && !session_->fused().ok()) {
      return {StatusCode::kUnsupported,
              "what follows cards can be packed only where attention reads them where they lie: " +
                  session_->fused().message()};
    }
    const Status room = session_->CheckRoomFor(before + (Speaks() ? 1 : 0), record_.taken_tokens);
    if (room.ok()) return {};
    return {room.code(), room.message() + " ('context' of the topology, or -c)"};
  }

  // The longest of the receivers' prompts, in bytes, of which a token has at least one.
  size_t ProbeRoom() const {
    size_t most = 0;
    for (const std::string& prompt : job_.receiver_prompts) most = std::max(most, prompt.size() + 64);
    return job_.agent.probe ? most : 0;
  }

  Status TakeOver() {
    record_.mode = "prefill";
    record_.reason = "nothing was taken over";
    if (StartsContext()) return {};
    watch_.LapUs();
    QKV_ASSIGN_OR_RETURN(const Injection injection, InjectCards(parts_, InjectMode::kFused, session_.get()));
    record_.mode = InjectModeName(injection.mode);
    record_.reason = injection.reason;
    AddStage("attach");
    return {};
  }

  Status Read() {
    QKV_RETURN_IF_ERROR(session_->KeepQueries(kWindowTokens, kWindowStride));
    PrefillOptions options;
    if (hooks_.progress) {
      options.progress = [this](size_t done, size_t total) { hooks_.progress("reading", done, total); };
    }
    watch_.LapUs();
    QKV_RETURN_IF_ERROR(session_->Prefill(prompt_, options));
    AddStage("prefill");
    record_.read_tokens = static_cast<uint32_t>(prompt_.size());
    return {};
  }

  Status Speak() {
    record_.outcome = Outcome::kRead;
    GenerateOptions options;
    options.sampling = job_.agent.sampling;
    options.predict = job_.agent.predict;
    options.stop = job_.agent.stop;
    size_t sampled = 0;
    options.on_text = [&](const std::string& piece) {
      if (hooks_.text) hooks_.text(piece);
      if (hooks_.progress) hooks_.progress("writing", ++sampled, options.predict);
    };
    if (Speaks()) {
      QKV_ASSIGN_OR_RETURN(const Generation generation, Generate(session_.get(), options));
      record_.stages.emplace_back("first_token", generation.first_token_us);
      record_.stages.emplace_back("generate", generation.total_us - generation.first_token_us);
      QKV_RETURN_IF_ERROR(Keep(generation));
    }
    for (const auto& [name, us] : record_.stages) {
      const bool counts = name != "context" && name != "generate";
      record_.ttft_us += counts ? us : 0;
    }
    return {};
  }

  // All that was generated stays in the context, for those who take it over.
  Status Keep(const Generation& generation) {
    if (generation.stop == StopReason::kCancelled) return {StatusCode::kCancelled, "interrupted"};
    record_.text = generation.text;
    record_.outcome = OutcomeOf(generation);
    const Status rest = DecodeRest(generation, session_.get());
    if (rest.code() == StatusCode::kOutOfRange) {
      record_.outcome = Outcome::kFull;
      if (generation.end_token < 0)
        record_.text = TextOf(std::span(generation.tokens).first(generation.tokens.size() - 1));
    } else {
      QKV_RETURN_IF_ERROR(rest);
    }
    record_.generated_tokens = static_cast<uint32_t>(session_->tokens().size() - record_.taken_tokens - prompt_.size());
    return {};
  }

  static Outcome OutcomeOf(const Generation& generation) {
    if (generation.tokens.empty()) return Outcome::kEmpty;
    switch (generation.stop) {
      case StopReason::kLength: return Outcome::kLimit;
      case StopReason::kContext: return Outcome::kFull;
      default: return Outcome::kStopped;
    }
  }

  std::string TextOf(std::span<const int32_t> tokens) const {
    std::string text;
    for (const int32_t token : tokens) text += model_.Piece(token);
    return text;
  }

  bool Shares(const std::string& role) const {
    const std::vector<std::string>& shares = job_.agent.shares;
    return shares.empty() || std::find(shares.begin(), shares.end(), role) != shares.end();
  }

  // Of the own tokens, counted from the first of them.
  std::vector<Segment> Segments() const {
    const auto read = static_cast<uint32_t>(prompt_.size());
    std::vector<Segment> segments = SegmentsOf(model_, messages_, prompt_, job_.agent.name);
    if (segments.empty()) segments.push_back({"user", job_.agent.name, "", 0, read});
    const auto all = static_cast<uint32_t>(session_->tokens().size()) - record_.taken_tokens;
    if (all > read) segments.push_back({std::string(kGenerated), job_.agent.name, "", read, all - read});
    for (Segment& segment : segments) {
      if (Shares(segment.role)) segment.readers = job_.readers;
    }
    return segments;
  }

  Status Pack() {
    watch_.LapUs();
    PackOptions options;
    options.policy = job_.agent.policy;
    // Nobody is known to read the card, so that there is nothing to go by but the own window.
    if (options.policy == Policy::kTopology && job_.readers.empty()) options.policy = Policy::kLocal;
    options.code_bits = job_.agent.budget.bits;
    options.max_bytes = job_.agent.budget.max_bytes;
    options.sender = job_.agent.name;
    options.segments = Segments();
    options.all_readers = true;
    const std::span<const int32_t> own = std::span(session_->tokens()).subspan(record_.taken_tokens);
    const AttentionWindow window = session_->window();
    if (!job_.anchors_folder.empty()) {
      QKV_ASSIGN_OR_RETURN(options.anchors, EarlierAnchors(job_.anchors_folder, job_.turn, own));
      for (Anchor& anchor : options.anchors) anchor.token += record_.taken_tokens;
    }
    if (job_.agent.probe && !job_.receiver_prompts.empty()) {
      QKV_ASSIGN_OR_RETURN(options.probe, Probe());
      AddStage("probe");
    }
    PackTimes times;
    const PackSource source{session_->card_context(), own, &window, 0};
    QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackTokens(source, options, &times));
    record_.stages.emplace_back("plan", times.take_us + times.plan_us);
    record_.stages.emplace_back("anchors", times.anchors_us);
    record_.stages.emplace_back("quantize", times.quantize_us);
    watch_.LapUs();
    QKV_RETURN_IF_ERROR(packed.Write(PathOf(CardFile(job_.turn))));
    QKV_ASSIGN_OR_RETURN(const Card card, Card::Open(PathOf(CardFile(job_.turn))));
    QKV_RETURN_IF_ERROR(HandOn(card));
    AddStage("write");
    record_.code_bits = card.average_code_bits();
    record_.policy = card.info().policy;
    record_.features = card.info().features;
    return {};
  }

  // What the receivers will be told, over this context.
  Result<AttentionWindow> Probe() {
    QKV_RETURN_IF_ERROR(session_->KeepQueries(0, 1));
    std::vector<std::vector<int32_t>> instructions;
    const std::string said = record_.generated_tokens == 0 ? "" : TextOfGenerated();
    for (const std::string& prompt : job_.receiver_prompts) {
      QKV_ASSIGN_OR_RETURN(const std::string text, NextUserTurn(model_, prompt, said));
      instructions.push_back(model_.Tokenize(text, /*add_special=*/false));
    }
    return ProbeWindow(session_.get(), instructions);
  }

  std::string TextOfGenerated() const {
    const std::vector<int32_t>& tokens = session_->tokens();
    return model_.Detokenize({tokens.end() - record_.generated_tokens, tokens.end()});
  }

  Status HandOn(const Card& card) {
    record_.card = {CardFile(job_.turn), ToHex(card.content_id()), card.tokens()};
    if (job_.agent.shares.empty()) {
      record_.gives = {record_.card};
      record_.card_bytes = card.file_bytes();
      return {};
    }
    const std::vector<Segment>& segments = card.info().segments;
    for (size_t i = 0; i < segments.size(); ++i) {
      if (!Shares(segments[i].role)) continue;
      const uint32_t first = segments[i].first_token;
      while (i + 1 < segments.size() && Shares(segments[i + 1].role)) ++i;
      QKV_RETURN_IF_ERROR(HandOnPart(card, first, segments[i].first_token + segments[i].tokens - first));
    }
    return {};
  }

  Status HandOnPart(const Card& card, uint32_t first, uint32_t tokens) {
    const bool at_start = StartsContext() && first == 0;
    if (record_.gives.empty() && !at_start) record_.gives.push_back(Start());
    const std::string file = PartFile(job_.turn, ++parts_written_);
    QKV_ASSIGN_OR_RETURN(const PackedCard packed, SliceCard(card, first, tokens, session_->threads()));
    QKV_RETURN_IF_ERROR(packed.Write(PathOf(file)));
    QKV_ASSIGN_OR_RETURN(const Card part, Card::Open(PathOf(file)));
    record_.gives.push_back({file, ToHex(part.content_id()), part.tokens()});
    record_.card_bytes += part.file_bytes();
    return {};
  }

  HandedCard Start() const {
    HandedCard start = StartsContext() ? record_.card : record_.taken.front();
    start.tokens = std::min(start.tokens, kStartTokens);
    return start;
  }

  const Model& model_;
  const TurnJob& job_;
  const TurnHooks& hooks_;
  TurnRecord record_;
  Stopwatch watch_;
  std::vector<CardPart> parts_;
  std::vector<ChatMessage> messages_;  // where a context starts
  std::vector<int32_t> prompt_;
  std::unique_ptr<Session> session_;
  size_t parts_written_ = 0;  // of its card
};

}  // namespace

std::string CardFile(const std::string& turn) { return turn + ".card"; }

std::string PartFile(const std::string& turn, size_t part) { return fmt::format("{}.part{}.card", turn, part); }

Result<TurnRecord> RunTurn(const Model& model, const TurnJob& job, const TurnHooks& hooks) {
  return TurnRunner(model, job, hooks).Run();
}

}  // namespace qkvshare
