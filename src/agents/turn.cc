#include "agents/turn.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "agents/earlier_anchors.h"
#include "agents/run_json.h"
#include "agents/run_records.h"
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
#include "runtime/score_error.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

constexpr std::string_view kGenerated = kOwnRoles[2];

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
    if (StartsContext()) {
      if (!job_.agent.system.empty()) messages_.push_back({"system", job_.agent.system});
      messages_.push_back({"user", job_.agent.prompt});
    }
    QKV_ASSIGN_OR_RETURN(prompt_, PromptTokens(Speaks()));
    if (prompt_.empty()) return {StatusCode::kInvalidArgument, "the prompt is empty"};
    QKV_ASSIGN_OR_RETURN(const std::vector<int32_t> told, PromptTokens(/*add_generation_prompt=*/false));
    const auto end = std::mismatch(told.begin(), told.end(), prompt_.begin(), prompt_.end()).second;
    told_tokens_ = static_cast<uint32_t>(end - prompt_.begin());
    return CheckShares();
  }

  Result<std::vector<int32_t>> PromptTokens(bool add_generation_prompt) const {
    if (StartsContext()) {
      QKV_ASSIGN_OR_RETURN(const std::string text, model_.ApplyChatTemplate(messages_, add_generation_prompt));
      return model_.Tokenize(text, /*add_special=*/true);
    }
    QKV_ASSIGN_OR_RETURN(const std::string text,
                         NextUserTurn(model_, job_.agent.prompt, OpenTurn(), add_generation_prompt));
    return model_.Tokenize(text, /*add_special=*/false);
  }

  // Whether there is something that it shares, and whether it can be told from the rest.
  Status CheckShares() const {
    if (job_.agent.shares.empty() || job_.readers.empty()) return {};
    const bool has_system = messages_.size() > 1;
    if (has_system && SegmentsOf(model_, messages_, prompt_, job_.agent.name).empty()) {
      return {StatusCode::kUnsupported,
              "the model's chat template puts the system message into the user's, so that 'shares' cannot tell them "
              "apart: leave out 'shares', or 'system'"};
    }
    if ((has_system && Shares("system")) || Shares("user") || (Speaks() && Shares(std::string(kGenerated)))) return {};
    return {StatusCode::kInvalidArgument,
            "in this turn it has no segment of the roles that it 'shares', so that others would get nothing: share "
            "another role too"};
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
    if (!room.ok()) return {room.code(), room.message() + " ('context' of the topology, or -c)"};
    return CheckBudget();
  }

  // Before the work: whether what is read alone is too much.
  Status CheckBudget() const {
    const uint64_t available = job_.agent.budget.max_bytes;
    if (available == 0) return {};
    const size_t least = prompt_.size() * TokenBytes(session_->state_layout().shapes, kLevels.front());
    if (least <= available) return {};
    return {StatusCode::kOutOfRange,
            fmt::format("'max_bytes' is too small: what it reads, {} tokens, needs {} bytes at least, but {} are "
                        "available",
                        prompt_.size(), least, available)};
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
    // Without flash attention there are no anchors, and other policies than uniform say that they need it.
    if (session_->flash_attention() || job_.agent.policy != Policy::kUniform) {
      QKV_RETURN_IF_ERROR(session_->KeepQueries(kWindowTokens, kWindowStride));
    }
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
    const bool cut = rest.code() == StatusCode::kOutOfRange;  // the last token, or the end, has no room
    if (!cut) QKV_RETURN_IF_ERROR(rest);
    if (cut && record_.outcome != Outcome::kStopped) {
      record_.outcome = Outcome::kFull;
      record_.text.resize(record_.text.size() - model_.Piece(generation.tokens.back()).size());
    }
    record_.text = AsUtf8(record_.text);  // as a record can keep it
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

  bool Shares(const std::string& role) const {
    const std::vector<std::string>& shares = job_.agent.shares;
    return shares.empty() || std::find(shares.begin(), shares.end(), role) != shares.end();
  }

  // Of the own tokens, counted from the first of them. The start of the assistant's turn is part of the answer.
  std::vector<Segment> Segments() const {
    const std::span<const int32_t> told = std::span(prompt_).first(told_tokens_);
    std::vector<Segment> segments = SegmentsOf(model_, messages_, {told.begin(), told.end()}, job_.agent.name);
    if (segments.empty()) segments.push_back({"user", job_.agent.name, "", 0, told_tokens_});
    const auto all = static_cast<uint32_t>(session_->tokens().size()) - record_.taken_tokens;
    if (all > told_tokens_) {
      segments.push_back({std::string(kGenerated), job_.agent.name, "", told_tokens_, all - told_tokens_});
    }
    for (Segment& segment : segments) {
      if (Shares(segment.role)) segment.readers = job_.readers;
    }
    return segments;
  }

  // Says in the record what is not as the topology has it.
  Result<PackOptions> OptionsOfPacking(std::span<const int32_t> own) {
    PackOptions options;
    options.policy = job_.agent.policy;
    if (options.policy == Policy::kTopology && job_.readers.empty()) {
      options.policy = Policy::kLocal;
      Note("policy local, since nobody reads on");
    }
    options.code_bits = job_.agent.budget.bits;
    options.max_bytes = job_.agent.budget.max_bytes;
    options.may_lack_choice = true;
    options.sender = job_.agent.name;
    options.segments = Segments();
    options.all_readers = true;
    if (options.policy != Policy::kTopology) return options;
    if (!job_.anchors_folder.empty()) {
      QKV_ASSIGN_OR_RETURN(options.anchors, EarlierAnchors(job_.anchors_folder, job_.turn, own));
      for (Anchor& anchor : options.anchors) anchor.token += record_.taken_tokens;
    }
    if (job_.agent.probe) QKV_RETURN_IF_ERROR(Probe(&options.probe));
    return options;
  }

  Status Pack() {
    watch_.LapUs();
    const std::vector<int32_t> own(session_->tokens().begin() + record_.taken_tokens, session_->tokens().end());
    const AttentionWindow window = session_->window();
    QKV_ASSIGN_OR_RETURN(const PackOptions options, OptionsOfPacking(own));
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
    const std::vector<uint8_t>& levels = card.plan().level_of_token;
    const bool alike =
        std::adjacent_find(levels.begin() + card.exact_tokens(), levels.end(), std::not_equal_to<>()) == levels.end();
    if (options.policy != Policy::kUniform && alike) Note("at this size every token has the same bits");
    QKV_ASSIGN_OR_RETURN(const ScoreError error, MeasureScoreError(source, card));
    if (error.rms >= kBadScoreError) {
      Note(fmt::format(
          "attention scores over this card are off by {:.2g}, most in layer {} (cards that read well: below "
          "{}): where its readers make no sense, give it more bits",
          error.rms, error.worst_layer, kBadScoreError));
    }
    return {};
  }

  void Note(const std::string& what) { record_.note += (record_.note.empty() ? "" : "; ") + what; }

  // What the receivers will be told, over this context: as far as it has room for it.
  Status Probe(AttentionWindow* queries) {
    std::vector<std::vector<int32_t>> instructions;
    const std::string said = record_.generated_tokens == 0 ? "" : TextOfGenerated();
    size_t longest = 0;
    for (const std::string& prompt : job_.receiver_prompts) {
      QKV_ASSIGN_OR_RETURN(const std::string text, NextUserTurn(model_, prompt, said));
      instructions.push_back(model_.Tokenize(text, /*add_special=*/false));
      longest = std::max(longest, instructions.back().size());
    }
    if (instructions.empty()) return {};
    if (!session_->CheckRoom(session_->tokens().size() + longest).ok()) {
      Note("without probe, for which the context has no room");
      return {};
    }
    watch_.LapUs();
    QKV_RETURN_IF_ERROR(session_->KeepQueries(0, 1));
    QKV_ASSIGN_OR_RETURN(*queries, ProbeWindow(session_.get(), instructions));
    AddStage("probe");
    return {};
  }

  std::string TextOfGenerated() const {
    const std::vector<int32_t>& tokens = session_->tokens();
    return model_.Detokenize({tokens.end() - record_.generated_tokens, tokens.end()});
  }

  Status HandOn(const Card& card) {
    record_.card = {CardFile(job_.turn), ToHex(card.content_id()), card.tokens()};
    if (job_.readers.empty()) return {};
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
    if (record_.gives.empty() && !at_start) record_.gives.push_back(StartOf(record_));
    const std::string file = PartFile(job_.turn, ++parts_written_);
    QKV_ASSIGN_OR_RETURN(const PackedCard packed, SliceCard(card, first, tokens, session_->threads()));
    QKV_RETURN_IF_ERROR(packed.Write(PathOf(file)));
    QKV_ASSIGN_OR_RETURN(const Card part, Card::Open(PathOf(file)));
    record_.gives.push_back({file, ToHex(part.content_id()), part.tokens()});
    record_.card_bytes += part.file_bytes();
    return {};
  }

  const Model& model_;
  const TurnJob& job_;
  const TurnHooks& hooks_;
  TurnRecord record_;
  Stopwatch watch_;
  std::vector<CardPart> parts_;
  std::vector<ChatMessage> messages_;  // where a context starts
  std::vector<int32_t> prompt_;
  uint32_t told_tokens_ = 0;  // of it, the first ones: all but the start of the assistant's turn
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
