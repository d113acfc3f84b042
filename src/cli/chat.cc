#include "cli/chat.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "cli/terminal.h"
#include "runtime/prompt.h"
#include "runtime/restore.h"
#include "runtime/sender.h"

namespace qkvshare::cli {
namespace {

// Tokens of a conversation where -c is 0, besides the card's.
constexpr size_t kChatTokens = 8192;

// Lines of standard input. A signal ends the waiting: its handler, on whatever thread, writes to a pipe.
class LineReader {
 public:
  LineReader() {
    if (pipe2(pipe_.data(), O_CLOEXEC | O_NONBLOCK) != 0) pipe_ = {-1, -1};
  }
  ~LineReader() {
    for (const int fd : pipe_)
      if (fd >= 0) close(fd);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line without its end (a line feed, with a carriage return before it or not); none at the end of the input,
  // or after Ctrl-C or SIGTERM.
  std::optional<std::string> Next() {
    const InterruptScope interrupt([this] { Wake(); });
    for (;;) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) return Take(end);
      if (at_end_ || !WaitForInput()) return std::nullopt;
      Fill();
      if (at_end_ && !buffer_.empty()) return Take(buffer_.size());
    }
  }
  // From a signal handler: Next ends, or the next one does.
  void Wake() const {
    const char byte = 0;
    [[maybe_unused]] const ssize_t written = write(pipe_[1], &byte, 1);
  }
  bool interrupted() const { return interrupted_; }
  // Why the input ended, where not for its end.
  const Status& problem() const { return problem_; }

 private:
  // The line that ends at `end`, out of the buffer.
  std::string Take(size_t end) {
    std::string line = buffer_.substr(0, end);
    buffer_.erase(0, end + 1);
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }

  // False after a signal.
  bool WaitForInput() {
    std::array<pollfd, 2> waits = {pollfd{STDIN_FILENO, POLLIN, 0}, {pipe_[0], POLLIN, 0}};
    while (poll(waits.data(), waits.size(), -1) < 0 && errno == EINTR) {
    }
    interrupted_ = (waits[1].revents & POLLIN) != 0;
    return !interrupted_;
  }

  void Fill() {
    std::array<char, 1 << 12> bytes;
    const ssize_t n = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) return;
    if (n < 0) problem_ = {StatusCode::kIo, std::string("cannot read standard input: ") + std::strerror(errno)};
    at_end_ = n <= 0;
    if (n > 0) buffer_.append(bytes.data(), static_cast<size_t>(n));
  }

  std::array<int, 2> pipe_{};
  std::string buffer_;
  bool at_end_ = false;
  bool interrupted_ = false;
  Status problem_;
};

class Chat {
 public:
  explicit Chat(const RunFlags& flags) : flags_(flags) {}

  // Returns the code of the last turn that was refused, or success. The card is written also where the conversation
  // failed: with what there is of it.
  Result<int> Run() {
    QKV_RETURN_IF_ERROR(Prepare());
    Status conversation = Converse();
    const bool save = !flags_.output.empty() && (conversation.ok() || HasOwnTokens());
    const Status saved = save ? Save() : Status();
    if (!conversation.ok()) {
      if (!saved.ok()) ReportError(saved);
      return conversation;
    }
    QKV_RETURN_IF_ERROR(saved);
    return exit_code_;
  }

 private:
  Status Prepare() {
    if (flags_.prompt.file == "-") {
      return {StatusCode::kInvalidArgument, "-f - and --interactive both read standard input; give another file"};
    }
    if (!flags_.cards.empty() && !flags_.prompt.system.empty()) {
      return {StatusCode::kInvalidArgument,
              "-sys starts a conversation, but the card's has started already; leave it out"};
    }
    QKV_RETURN_IF_ERROR(CheckUtf8(flags_.prompt.system));
    QKV_RETURN_IF_ERROR(CheckOutput(flags_));
    std::vector<CardPart> cards;
    if (!flags_.cards.empty()) {
      QKV_ASSIGN_OR_RETURN(OpenedCards opened, OpenCards(flags_));
      cards = std::move(opened.parts);
    }
    QKV_ASSIGN_OR_RETURN(model_, flags_.model.Load());
    for (const CardPart& part : cards) QKV_RETURN_IF_ERROR(CheckCardModel(*part.card, *model_));
    if (const Result<std::string> turn = NextUserTurn(*model_, "", ""); !turn) return turn.status();
    SessionOptions options = SessionFor(flags_, cards);
    const size_t card_tokens = cards.empty() ? 0 : cards.back().end();
    if (options.context == 0) options.context = ContextFor(*model_, card_tokens + kChatTokens);
    QKV_ASSIGN_OR_RETURN(session_, Session::Create(*model_, options));
    // What is written is packed by the queries of the whole conversation's last tokens.
    if (!flags_.output.empty() && session_->flash_attention())
      QKV_RETURN_IF_ERROR(session_->KeepQueries(kWindowTokens, kWindowStride));
    if (cards.empty()) return {};
    QKV_RETURN_IF_ERROR(CheckDelta(flags_, cards, *session_));
    QKV_ASSIGN_OR_RETURN(const Injection injection, InjectCards(cards, flags_.inject, session_.get()));
    segments_ = SegmentsOfCards(cards);
    open_turn_ = EndsInAnswer(cards);
    PrintNote(fmt::format("mode: {} ({}; {} tokens from the card; K {}, V {}, flash attention {})\n",
                          InjectModeName(injection.mode), injection.reason, card_tokens,
                          CacheTypeName(session_->cache_type_k()), CacheTypeName(session_->cache_type_v()),
                          session_->flash_attention() ? "on" : "off"));
    return {};
  }

  Status Converse() {
    const bool terminal = isatty(STDIN_FILENO) == 1;
    if (terminal) PrintNote("Ctrl-C stops an answer; Ctrl-D or /exit leaves.\n");
    std::atomic<bool> leave{false};  // a signal between two turns
    LineReader reader;
    const InterruptScope between([&] {
      leave = true;
      reader.Wake();  // it may be about to wait
    });
    QKV_ASSIGN_OR_RETURN(std::optional<std::string> line, FirstTurn());
    for (bool first = line.has_value(); !leave; first = false) {
      if (!first) {
        if (terminal) PrintNote("> ");
        line = reader.Next();
      }
      if (!line || *line == "/exit") break;
      if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
      const Status status = Turn(*line);
      const bool goes_on = status.code() == StatusCode::kOutOfRange || status.code() == StatusCode::kInvalidArgument;
      if (!status.ok() && !goes_on) return status;
      if (!status.ok()) exit_code_ = ReportError(status);
      if (OutputIsLost() || TerminationRequested()) break;
    }
    if (terminal && !line) PrintNote("\n");
    if (leave || reader.interrupted() || TerminationRequested()) exit_code_ = kInterrupted;
    return reader.problem();
  }

  // -p or -f, if given.
  Result<std::optional<std::string>> FirstTurn() const {
    if (!flags_.prompt.text && flags_.prompt.file.empty()) return std::optional<std::string>();
    PromptFlags flags = flags_.prompt;
    flags.chat = false;  // the text as it is
    flags.system.clear();
    QKV_ASSIGN_OR_RETURN(Prompt prompt, ReadPrompt(flags, *model_, false));
    return std::optional<std::string>(std::move(prompt.text));
  }

  // The whole conversation's tokens with this turn, and the start of the answer.
  Result<JoinedPrompt> PromptWith(const std::string& text) {
    if (session_->tokens().empty()) {
      messages_.clear();
      if (!flags_.prompt.system.empty()) messages_.push_back({"system", flags_.prompt.system});
      messages_.push_back({"user", text});
      QKV_ASSIGN_OR_RETURN(const std::string start,
                           model_->ApplyChatTemplate(messages_, /*add_generation_prompt=*/true));
      return MatchPrompt({}, model_->Tokenize(start, /*add_special=*/true));
    }
    const std::string before = open_turn_ ? model_->Detokenize(session_->tokens()) : "";
    QKV_ASSIGN_OR_RETURN(const std::string turn, NextUserTurn(*model_, text, before));
    return JoinPrompt(*model_, session_->tokens(), turn);
  }

  // One turn and its answer. kOutOfRange and kInvalidArgument leave the conversation as it was; being cancelled is no
  // error: without an answer, the turn is taken back.
  Status Turn(const std::string& text) {
    QKV_RETURN_IF_ERROR(CheckUtf8(text));
    QKV_ASSIGN_OR_RETURN(const JoinedPrompt prompt, PromptWith(text));
    if (prompt.tokens.size() >= session_->context()) {
      return {
          StatusCode::kOutOfRange,
          fmt::format("the context is full: {} tokens needed, {} available; say less, or leave and start again with "
                      "a larger -c",
                      prompt.tokens.size() + 1, session_->context())};
    }
    const std::vector<int32_t> before = session_->tokens();
    const std::vector<PlacedCard> cards = session_->cards();
    const InterruptScope interrupt([this] { session_->Cancel(); });
    const Status status = Read(prompt);
    if (!status.ok()) {
      session_->ResetCancel();
      const bool stopped = status.code() == StatusCode::kCancelled;
      if (stopped) PrintNote("stopped; the turn was taken back\n");
      const Status back = TakeBack(before, cards, prompt.cached);
      return stopped ? back : status;
    }
    NoteTurn(prompt);
    return Answer();  // a signal that came too late to stop the reading stops the answer
  }

  Status Read(const JoinedPrompt& prompt) {
    QKV_RETURN_IF_ERROR(session_->Truncate(prompt.cached));
    ProgressLine line("reading");
    PrefillOptions options;
    options.progress = [&](size_t done, size_t total) { line.Update(done, total, "tokens"); };
    return session_->Prefill(std::span(prompt.tokens).subspan(prompt.cached), options);
  }

  // The seam may have cost a few tokens of what was there.
  Status TakeBack(const std::vector<int32_t>& before, const std::vector<PlacedCard>& cards, size_t cached) {
    const size_t attached = cards.empty() ? 0 : cards.back().end();
    if (cached < attached) {
      QKV_RETURN_IF_ERROR(session_->AttachCards(cards));
    } else {
      QKV_RETURN_IF_ERROR(session_->Truncate(cached));
    }
    const size_t held = session_->tokens().size();
    if (held == before.size()) return {};
    return session_->Prefill(std::span(before).subspan(held), {});
  }

  Status Answer() {
    const auto start = static_cast<uint32_t>(session_->tokens().size());
    open_turn_ = true;
    Status status = Speak();
    if (const auto end = static_cast<uint32_t>(session_->tokens().size()); end > start) {
      segments_.push_back({kGeneratedRole, flags_.agent, "", start, end - start});
    }
    return status;
  }

  // The session holds what was printed, for the next turn; a full context keeps what fits, and so does an interrupt
  // that came too late to stop anything but the last token.
  Status Speak() {
    QKV_ASSIGN_OR_RETURN(const Generation answer, PrintAnswer(flags_.generate, session_.get()));
    session_->ResetCancel();
    Status rest = DecodeRest(answer, session_.get());
    session_->ResetCancel();
    const bool fits = rest.code() == StatusCode::kOutOfRange || rest.code() == StatusCode::kCancelled;
    if (!rest.ok() && !fits) return rest;
    if (answer.stop != StopReason::kContext) return {};
    return {StatusCode::kOutOfRange,
            fmt::format("the context of {} tokens is full: the answer was cut; leave and start again with a larger -c",
                        session_->context())};
  }

  // The segments up to this turn's end. The seam may cost the last of them some tokens.
  void NoteTurn(const JoinedPrompt& prompt) {
    const auto cached = static_cast<uint32_t>(prompt.cached);
    const auto end = static_cast<uint32_t>(prompt.tokens.size());
    if (cached == 0) segments_ = SegmentsOf(*model_, messages_, prompt.tokens, flags_.agent);
    while (!segments_.empty() && segments_.back().first_token >= cached && cached > 0) segments_.pop_back();
    if (segments_.empty()) {
      segments_.push_back({"user", flags_.agent, "", 0, end});
    } else if (cached > 0) {
      segments_.back().tokens = cached - segments_.back().first_token;
      segments_.push_back({"user", flags_.agent, "", cached, end - cached});
    }
  }

  bool HasOwnTokens() const { return session_->tokens().size() > session_->attached(); }

  Status Save() {
    if (!HasOwnTokens()) {
      return {StatusCode::kInvalidArgument, "nothing was said, so no card was written"};
    }
    // After a failure there may be fewer tokens than the turns had.
    const auto tokens = static_cast<uint32_t>(session_->tokens().size());
    while (!segments_.empty() && segments_.back().first_token >= tokens) segments_.pop_back();
    if (!segments_.empty()) segments_.back().tokens = tokens - segments_.back().first_token;
    return WriteCard(flags_, *session_, SegmentsFrom(segments_, session_->attached()));
  }

  const RunFlags& flags_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;   // after model_: it goes first
  std::vector<ChatMessage> messages_;  // of the first turn, without a card
  std::vector<Segment> segments_;
  bool open_turn_ = false;  // the tokens end within the assistant's turn
  int exit_code_ = kSuccess;
};

}  // namespace

int RunChat(const RunFlags& flags) {
  const Result<int> code = Chat(flags).Run();
  return code ? *code : ReportError(code.status());
}

}  // namespace qkvshare::cli
