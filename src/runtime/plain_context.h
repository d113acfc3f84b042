// llama.cpp alone: a context with a session's parameters and no callback, to measure sessions against.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/session.h"

struct llama_context;

namespace qkvshare {

// Sequence 0, or several that start as copies of it. The model must outlive it. Not thread-safe.
class PlainContext {
 public:
  // options: that a session can be made with; fused and card_tokens do not matter, and cancel is looked at between
  // calls. kInvalidArgument as CheckSessionOptions; kUnsupported as CheckCacheTypes; kOutOfRange where llama.cpp cannot
  // make the context.
  static Result<std::unique_ptr<PlainContext>> Create(const Model& model, SessionOptions options);
  ~PlainContext();
  PlainContext(const PlainContext&) = delete;
  PlainContext& operator=(const PlainContext&) = delete;

  // Decodes tokens after those that are there, in calls of as many as a session's. Computes the logits of the last
  // token of each call, as a session does. Errors: DecodeStatus; kCancelled between calls.
  Status Prefill(std::span<const int32_t> tokens, int sequence = 0);
  // Keeps the first `tokens` tokens.
  Status Truncate(size_t tokens);
  // Gives another sequence, which is empty, the tokens of sequence 0. The rows are shared, not copied.
  void ShareWith(int sequence);

  // Replaces the sequence by a state as llama_state_seq_get_data or BuildCardState makes it, of a context with the same
  // options but for its size. Where llama.cpp refuses it (kInternal) the sequence is empty.
  Status SetState(ByteSpan state);
  // llama.cpp's own file of the sequence, which holds these tokens. kIo.
  Status SaveFile(const std::string& path, std::span<const int32_t> tokens) const;
  // Replaces the sequence by that of such a file; returns its tokens. Where llama.cpp refuses it (kIo) the sequence is
  // empty. For files that SaveFile has written: llama.cpp aborts on some others, such as one that was cut off.
  Result<std::vector<int32_t>> LoadFile(const std::string& path);

  // Of the token that was decoded last, [vocab]; nullptr before the first.
  const float* logits() const;
  // Rows of its cache: its tokens, rounded up by llama.cpp.
  uint32_t cells() const;

 private:
  PlainContext(llama_context* context, const std::atomic<bool>* cancel) : context_(context), cancel_(cancel) {}
  void Clear();

  llama_context* context_;
  const std::atomic<bool>* cancel_;  // may be null
};

}  // namespace qkvshare
