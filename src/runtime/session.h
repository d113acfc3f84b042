// A session: one llama.cpp context with one sequence or several. The token list of each always equals its rows in the
// KV cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "card/card.h"
#include "card/card_info.h"
#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "runtime/attached_card.h"
#include "runtime/cache_type.h"
#include "runtime/card_context.h"
#include "runtime/kv_state.h"
#include "runtime/model.h"

struct llama_context;

namespace qkvshare {

// Names follow llama.cpp's.
struct SessionOptions {
  uint32_t context = 0;      // -c, tokens; 0: the model's training context
  uint32_t batch = 512;      // -ub: tokens of one decode call
  int threads = 0;           // -t; 0: one a core
  float rope_freq_base = 0;  // 0: from the model
  float rope_freq_scale = 0;
  CacheType cache_type_k = CacheType::kF16;  // -ctk: of the context's own cache
  CacheType cache_type_v = CacheType::kF16;  // -ctv
  bool flash_attention = true;               // -fa
  // Numbered from 0. They share the context's tokens, and know nothing of each other.
  int sequences = 1;
  // Cards may be attached, where a self-test passes (Session::fused).
  bool fused = false;
  // Of `context`: tokens that attached cards will hold. No memory is set aside for them.
  uint32_t card_tokens = 0;
  // While it is true every decode stops, as after Session::Cancel. Outlives the session. Null: none.
  const std::atomic<bool>* cancel = nullptr;
};

inline constexpr int kMaxSequences = 64;

// The context for `tokens` tokens where `context` is 0: rounded up, at most the model's training context.
uint32_t ContextFor(const Model& model, size_t tokens);

// What is wrong with options whatever the model: kInvalidArgument.
Status CheckSessionOptions(const SessionOptions& options);
// Whether llama.cpp can hold the model's heads in caches of these types: kUnsupported says why not.
Status CheckCacheTypes(const Model& model, const SessionOptions& options);

struct PrefillOptions {
  // Keeps the queries of the last `window` tokens for a policy; 0: none. Every stride-th of them.
  uint32_t window = 0;
  uint32_t window_stride = 1;
  // Called after each decode call with tokens done and in all. May be empty.
  std::function<void(size_t, size_t)> progress;
  // Called with the logits [vocab] of each token of this prefill, by its index. Where it is empty only the last token's
  // logits are computed.
  std::function<void(size_t, const float*)> logits;
};

// The next tokens of one sequence.
struct SequenceTokens {
  int sequence = 0;
  std::span<const int32_t> tokens;
};

// llama.cpp's sequence ids. With a sliding window there is one more, for CardContext::SaveState. And llama.cpp gives
// the cells of tokens that have left the window to whoever needs one, unless they belong to two sequences: each of
// several sequences has a keeper that holds on to them.
struct SequenceIds {
  int sequences;
  bool windowed;

  bool keeps() const { return windowed && sequences > 1; }
  int keeper(int sequence) const { return sequences + 1 + sequence; }
  int count() const { return sequences + (windowed ? 1 : 0) + (keeps() ? sequences : 0); }
};

// The model must outlive it. Not thread-safe, but Cancel may be called from any thread or signal handler. What takes a
// sequence refuses one that is not there (kInvalidArgument), or expects it to be there where it returns no Status.
class Session {
 public:
  // Makes the context, then decodes a token or two in it and checks that its graph and its state are laid out as this
  // software expects. kInvalidArgument as CheckSessionOptions; kUnsupported says what is not as expected; kOutOfRange
  // where llama.cpp cannot make the context.
  static Result<std::unique_ptr<Session>> Create(const Model& model, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Decodes tokens after those that are there. kOutOfRange before anything is changed where the context is too short
  // (needed and available); kUnsupported for a window without flash attention; kCancelled after a whole number of
  // tokens.
  Status Prefill(std::span<const int32_t> tokens, const PrefillOptions& options, int sequence = 0);
  // Decodes the next tokens of several sequences in one call; then there are the logits of the last token of each. A
  // sequence gets what it would get alone but for rounding: llama.cpp multiplies one row of a call in another way than
  // several, and several at a time; attention over attached cards does not depend on the call. kInvalidArgument: no
  // tokens, a sequence twice, more tokens than a call takes (`batch`); else as Prefill. All of it or nothing is done.
  Status DecodeTogether(std::span<const SequenceTokens> parts);
  // Whether it could, but for room: kInvalidArgument.
  Status CheckTogether(std::span<const SequenceTokens> parts) const;
  // Whether the context holds these tokens too: kOutOfRange, as CheckRoom.
  Status CheckRoomFor(std::span<const SequenceTokens> parts) const;
  // The window of the last Prefill, or what KeepQueries keeps; its tokens count from the first one after attached
  // cards. Empty where none was asked for, it was of another sequence's Prefill, or its tokens are no longer there.
  const AttentionWindow& window(int sequence = 0) const { return windows_[static_cast<size_t>(sequence)]; }
  // Gives the sequence the window that it had, once what was decoded since has been truncated.
  void SetWindow(AttentionWindow window, int sequence) { windows_[static_cast<size_t>(sequence)] = std::move(window); }
  // From here on every decode keeps the queries of the last `tokens` tokens of its sequences, at every stride-th
  // position, generated tokens too; 0: no more. A Prefill must not ask for a window of its own then. kUnsupported
  // without flash attention.
  Status KeepQueries(uint32_t tokens, uint32_t stride);
  // Logits of the sequence's last token, [vocab]; nullptr where it was not decoded by the last call (but restored, or
  // before another sequence's turn).
  const float* logits(int sequence = 0) const;

  // The rows of all tokens but those that attached cards hold, in FP16 whatever the cache's type. kNonFinite names
  // layer and token of a value that FP16 does not hold.
  Result<KvState> TakeKv(int sequence = 0) const;
  // llama.cpp's own state of the sequence, in the cache's types. In layers with a sliding window too it has the rows of
  // all tokens, in the order of their positions.
  Result<std::vector<uint8_t>> SaveState(int sequence = 0) const;

  // Replaces the sequence by llama.cpp's own state of these tokens. Checked before anything is changed.
  Status RestoreState(ByteSpan state, std::span<const int32_t> tokens, int sequence = 0);
  // The same for bytes that BuildState made.
  Status SetState(ByteSpan state, std::span<const int32_t> tokens, int sequence = 0);

  // kOutOfRange where the context does not hold this many tokens in this sequence beside the others' (needed and
  // available).
  Status CheckRoom(size_t tokens, int sequence = 0) const;
  // The same if attached cards held `attached` of them.
  Status CheckRoomFor(size_t tokens, size_t attached, int sequence = 0) const;

  // Whether cards may be attached, and if not, why: see CardContext::fused.
  const Status& fused() const { return card_context_->fused(); }
  // Replaces the sequence by these cards, of which the first starts at position 0 and each other where the one before
  // ends. Nothing is decoded. All checks come before anything is changed: fused(), kMismatch, kInvalidArgument (gaps),
  // kOutOfRange (context too short), kUnsupported (a card cannot be moved to its place).
  Status AttachCards(std::vector<PlacedCard> cards, int sequence = 0);
  const std::vector<PlacedCard>& cards(int sequence = 0) const { return card_context_->cards(sequence); }
  // Tokens of the sequence, the first ones, that attached cards hold.
  size_t attached(int sequence = 0) const { return card_context_->end(sequence); }

  // Keeps the first `tokens` tokens.
  Status Truncate(size_t tokens, int sequence = 0);
  void Clear(int sequence = 0);

  // Stops the running decode as soon as llama.cpp allows, and every later one until ResetCancel.
  void Cancel() { cancelled_.store(true); }
  void ResetCancel() { cancelled_.store(false); }

  Status CheckSequence(int sequence) const;
  const std::vector<int32_t>& tokens(int sequence = 0) const { return tokens_[static_cast<size_t>(sequence)]; }
  int sequences() const { return options_.sequences; }
  // Tokens that a sequence may hold, and that all sequences together may, but for those that attached cards hold.
  uint32_t context() const { return context_tokens_; }
  int threads() const { return threads_; }
  const Model& model() const { return model_; }
  // What was found out about the context, and the cards that are attached to its sequences.
  const CardContext& card_context() const { return *card_context_; }
  // As they are in effect.
  CacheType cache_type_k() const { return facts().key_type; }
  CacheType cache_type_v() const { return facts().value_type; }
  bool flash_attention() const { return facts().flash_attention; }
  std::vector<uint32_t> windows() const { return facts().windows(); }
  const ModelIdentity& identity() const { return facts().identity; }
  const StateLayout& state_layout() const { return facts().layout; }
  llama_context* handle() const { return context_; }

 private:
  Session(const Model& model, const SessionOptions& options);
  Status MakeContext();
  const ContextFacts& facts() const { return card_context_->facts(); }
  Status CheckTokens(std::span<const int32_t> tokens) const;
  size_t OthersRows(int sequence) const;
  void KeepCards(size_t tokens, int sequence);
  bool IsCancelled() const {
    return cancelled_.load(std::memory_order_relaxed) ||
           (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed));
  }
  size_t rows(int sequence) const { return tokens(sequence).size() - attached(sequence); }
  Status Decode(std::span<const SequenceTokens> parts, bool all_logits, size_t ahead);
  Status DecodeNow(std::span<const SequenceTokens> parts, bool all_logits);
  std::vector<LayerQueries> TakeQueries();
  void SyncTokens(int sequence);
  void ForgetEnd(int sequence);
  void Keep(int sequence, size_t from);
  bool Remove(int sequence, size_t from);
  void TakeWindow(size_t first, size_t end, const PrefillOptions& options, int sequence);

  const Model& model_;
  const SessionOptions options_;
  const SequenceIds ids_;
  std::unique_ptr<CardContext> card_context_;  // before context_, which calls it
  llama_context* context_ = nullptr;
  int threads_ = 1;
  uint32_t batch_ = 0;
  uint32_t context_tokens_ = 0;
  uint32_t cells_ = 0;                        // rows of the cache
  std::vector<std::vector<int32_t>> tokens_;  // of each sequence
  std::vector<AttentionWindow> windows_;      // of each sequence
  uint32_t kept_tokens_ = 0, kept_stride_ = 1;
  std::vector<int32_t> logits_rows_;  // of each sequence: its last token's place in the last call; -1: not in it
  std::atomic<bool> cancelled_{false};
};

}  // namespace qkvshare
