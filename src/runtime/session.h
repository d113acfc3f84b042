// A session: one llama.cpp context with one sequence. Its token list always equals the rows of its KV cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "card/card.h"
#include "card/card_info.h"
#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "runtime/graph_probe.h"
#include "runtime/kv_state.h"
#include "runtime/model.h"

struct llama_context;

namespace qkvshare {

// Type of the context's own cache. Cards go with F16 only; the others are there to compare with.
enum class CacheType { kF16, kQ8_0, kQ4_0 };

// Names follow llama.cpp's.
struct SessionOptions {
  uint32_t context = 0;      // -c, tokens; 0: the model's training context
  uint32_t batch = 512;      // -ub: tokens of one decode call
  int threads = 0;           // -t; 0: one a core
  float rope_freq_base = 0;  // 0: from the model
  float rope_freq_scale = 0;
  CacheType cache_type = CacheType::kF16;
};

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

// The model must outlive it. Not thread-safe, but Cancel may be called from any thread or signal handler.
class Session {
 public:
  // Makes the context, then decodes one token in it and checks that its graph and its state are laid out as this
  // software expects. kUnsupported says what is not; kOutOfRange where llama.cpp cannot make the context.
  static Result<std::unique_ptr<Session>> Create(const Model& model, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Decodes tokens after those that are there. kOutOfRange before anything is changed where the context is too short
  // (needed and available); kCancelled after a whole number of tokens.
  Status Prefill(std::span<const int32_t> tokens, const PrefillOptions& options);
  // The window of the last Prefill, empty where none was asked for.
  const AttentionWindow& window() const { return window_; }
  // Logits of the last decoded token, [vocab]; nullptr where there are none (after a restore).
  const float* logits() const;

  // The rows of all tokens. kUnsupported for a quantized cache.
  Result<KvState> TakeKv() const;
  // llama.cpp's own state of the sequence (its F16 hand-over).
  Result<std::vector<uint8_t>> SaveState() const;

  // Replaces the sequence by llama.cpp's own state of these tokens. Checked before anything is changed.
  Status RestoreState(ByteSpan state, std::span<const int32_t> tokens);
  // The same for bytes that BuildState made.
  Status SetState(ByteSpan state, std::span<const int32_t> tokens);

  // kOutOfRange where the context does not hold this many tokens (needed and available).
  Status CheckRoom(size_t tokens) const;

  // Keeps the first `tokens` tokens.
  Status Truncate(size_t tokens);
  void Clear();

  // Stops the running decode as soon as llama.cpp allows, and every later one until ResetCancel.
  void Cancel() { cancelled_.store(true); }
  void ResetCancel() { cancelled_.store(false); }

  const std::vector<int32_t>& tokens() const { return tokens_; }
  // Tokens that it may hold.
  uint32_t context() const { return context_tokens_; }
  int threads() const { return threads_; }
  const Model& model() const { return model_; }
  // Of the model as this context uses it.
  const ModelIdentity& identity() const { return identity_; }
  const StateLayout& state_layout() const { return layout_; }
  llama_context* handle() const { return context_; }

 private:
  explicit Session(const Model& model) : model_(model) {}
  Status Probe(CacheType cache_type);
  Status CheckTokens(std::span<const int32_t> tokens) const;
  Status Decode(std::span<const int32_t> tokens, bool all_logits);
  void SyncTokens(size_t at_most);

  const Model& model_;
  GraphProbe probe_;  // before context_: the context calls it
  llama_context* context_ = nullptr;
  int threads_ = 1;
  uint32_t batch_ = 0;
  uint32_t context_tokens_ = 0;
  std::vector<int32_t> tokens_;
  AttentionWindow window_;
  ModelIdentity identity_;
  StateLayout layout_;
  bool has_logits_ = false;
  std::atomic<bool> cancelled_{false};
};

}  // namespace qkvshare
