#include "runtime/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "llama.h"
#include "runtime/backend.h"

namespace qkvshare {
namespace {

// A batch of one sequence, freed on every way out.
class Batch {
 public:
  Batch(size_t tokens, int sequence)
      : batch_(llama_batch_init(static_cast<int32_t>(tokens), 0, 1)), sequence_(sequence) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Add(int32_t token, size_t position, bool logits) {
    const int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence_;
    batch_.logits[i] = static_cast<int8_t>(logits);
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
  llama_seq_id sequence_;
};

}  // namespace

Status Session::Decode(std::span<const int32_t> tokens, bool all_logits, int sequence) {
  std::vector<int32_t>& held = tokens_[static_cast<size_t>(sequence)];
  Batch batch(tokens.size(), sequence);
  for (size_t i = 0; i < tokens.size(); ++i)
    batch.Add(tokens[i], held.size() + i, all_logits || i + 1 == tokens.size());
  logits_sequence_ = -1;
  int32_t error = -1;
  try {
    if (fused_ == nullptr) {
      error = llama_decode(context_, batch.get());
    } else if (Status status = fused_->Decode(context_, batch.get(), &error); !status.ok()) {
      SyncTokens(sequence);
      return status;
    }
  } catch (const std::exception& e) {
    SyncTokens(sequence);
    return {StatusCode::kInternal, fmt::format("llama.cpp failed to decode: {}", e.what())};
  }
  if (error == 0) {
    held.insert(held.end(), tokens.begin(), tokens.end());
    Keep(sequence, held.size() - tokens.size());
    logits_sequence_ = sequence;
    return {};
  }
  SyncTokens(sequence);
  if (error == 2) return {StatusCode::kCancelled, "cancelled"};
  if (error == 1) return {StatusCode::kOutOfRange, "the context is full; use a larger -c"};
  return {StatusCode::kInternal, fmt::format("llama.cpp failed to decode (error {}){}", error, LlamaErrorSuffix())};
}

// After a failed decode: drops whatever it left in the cache, so that rows and tokens agree.
void Session::SyncTokens(int sequence) {
  std::vector<int32_t>& held = tokens_[static_cast<size_t>(sequence)];
  Remove(sequence, held.size());
  const llama_pos last = llama_memory_seq_pos_max(llama_get_memory(context_), sequence);
  const size_t left = last < 0 ? attached(sequence) : static_cast<size_t>(last) + 1;
  held.resize(std::min(held.size(), left));
}

// Has the sequence's keeper, if it has one, hold its tokens from `from` on.
void Session::Keep(int sequence, size_t from) {
  if (!ids_.keeps()) return;
  llama_memory_seq_cp(llama_get_memory(context_), sequence, ids_.keeper(sequence), static_cast<llama_pos>(from), -1);
}

// Frees the rows of the sequence's tokens from `from` on.
bool Session::Remove(int sequence, size_t from) {
  llama_memory_t memory = llama_get_memory(context_);
  const auto first = static_cast<llama_pos>(from);
  const bool kept = !ids_.keeps() || llama_memory_seq_rm(memory, ids_.keeper(sequence), first, -1);
  return llama_memory_seq_rm(memory, sequence, first, -1) && kept;
}

Status Session::CheckSequence(int sequence) const {
  if (sequence >= 0 && sequence < options_.sequences) return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("there is no sequence {}: the session has {}", sequence, options_.sequences)};
}

Status Session::CheckTokens(std::span<const int32_t> tokens) const {
  const int32_t vocab = model_.vocab_size();
  const auto known = [&](int32_t token) { return token >= 0 && token < vocab; };
  if (std::all_of(tokens.begin(), tokens.end(), known)) return {};
  return {StatusCode::kInvalidArgument, "a token id is not in the model's vocabulary"};
}

// Rows that the cache holds for the other sequences.
size_t Session::OthersRows(int sequence) const {
  size_t all = 0;
  for (int i = 0; i < options_.sequences; ++i) all += i == sequence ? 0 : rows(i);
  return all;
}

Status Session::CheckRoom(size_t tokens, int sequence) const {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  return CheckRoomFor(tokens, attached(sequence), sequence);
}

Status Session::CheckRoomFor(size_t tokens, size_t attached, int sequence) const {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  // Any cell will do, so what counts is their number.
  const size_t others = OthersRows(sequence);
  const size_t cells = cells_ - std::min<size_t>(others, cells_);
  const size_t available = std::min<size_t>(context(), cells + attached);
  if (tokens <= available) return {};
  return {StatusCode::kOutOfRange,
          fmt::format("the context is too short: {} tokens needed, {} available{}; use a larger -c", tokens, available,
                      others == 0 ? "" : fmt::format(" beside {} of other sequences", others))};
}

Status Session::Prefill(std::span<const int32_t> tokens, const PrefillOptions& options, int sequence) {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  if (tokens.empty()) return {StatusCode::kInvalidArgument, "there are no tokens to prefill"};
  QKV_RETURN_IF_ERROR(CheckTokens(tokens));
  QKV_RETURN_IF_ERROR(CheckRoom(this->tokens(sequence).size() + tokens.size(), sequence));
  if (options.window > 0 && !options_.flash_attention)
    return {StatusCode::kUnsupported, "policies that look at attention need flash attention; use -fa on"};
  window_ = {};
  const size_t start = this->tokens(sequence).size();
  const size_t window_start = tokens.size() - std::min<size_t>(options.window, tokens.size());
  for (size_t done = 0; done < tokens.size();) {
    const size_t n = std::min<size_t>(batch_, tokens.size() - done);
    const bool capture = options.window > 0 && done + n > window_start;
    if (capture) probe_.CaptureFrom(static_cast<uint32_t>(window_start > done ? window_start - done : 0));
    const Status status = Decode(tokens.subspan(done, n), options.logits != nullptr, sequence);
    probe_.StopCapturing();
    if (!status.ok()) {
      probe_.TakeQueries();
      return status;
    }
    for (size_t i = 0; options.logits && i < n; ++i)
      options.logits(done + i, llama_get_logits_ith(context_, static_cast<int32_t>(i)));
    done += n;
    if (options.progress) options.progress(done, tokens.size());
  }
  if (options.window > 0) TakeWindow(start + window_start, start + tokens.size(), options, sequence);
  return {};
}

// The captured queries of tokens [first, end), as they were before llama.cpp rotated them.
void Session::TakeWindow(size_t first, size_t end, const PrefillOptions& options, int sequence) {
  window_sequence_ = sequence;
  window_.layers = probe_.TakeQueries();
  for (size_t i = 0; i < std::min(window_.layers.size(), layout_.formats.size()); ++i) {
    LayerQueries& queries = window_.layers[i];
    RotateBlocks(layout_.formats[i].keys.rotation, queries.q.data(), queries.q.size());
    queries.window = layout_.formats[i].window;
  }
  for (size_t i = first; i < end; ++i) window_.last_visible.push_back(static_cast<uint32_t>(i - attached(sequence)));
  ThinWindow(options.window_stride, &window_);
}

const AttentionWindow& Session::window(int sequence) const {
  static const AttentionWindow kNone;
  return sequence == window_sequence_ ? window_ : kNone;
}

const float* Session::logits(int sequence) const {
  return sequence >= 0 && logits_sequence_ == sequence ? llama_get_logits_ith(context_, -1) : nullptr;
}

std::vector<uint32_t> Session::windows() const {
  std::vector<uint32_t> windows;
  for (const LayerFormat& format : layout_.formats) windows.push_back(format.window);
  return windows;
}

Result<std::vector<uint8_t>> Session::SaveRaw(int sequence, uint32_t flags) const {
  std::vector<uint8_t> state(llama_state_seq_get_size_ext(context_, sequence, flags));
  if (state.empty() ||
      llama_state_seq_get_data_ext(context_, state.data(), state.size(), sequence, flags) != state.size()) {
    return Status(StatusCode::kInternal, "llama.cpp cannot save the sequence's state" + LlamaErrorSuffix());
  }
  return state;
}

Result<std::vector<uint8_t>> Session::SaveState(int sequence) const {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  std::vector<std::vector<uint8_t>> states(1);
  QKV_ASSIGN_OR_RETURN(states[0], SaveRaw(sequence, 0));
  if (rows(sequence) == 0) return std::move(states[0]);
  const size_t window = layout_.window();
  const size_t first = attached(sequence);
  const size_t last = window > 0 ? tokens(sequence).size() - std::min(window, rows(sequence)) : first;
  const int scratch = ids_.scratch();
  llama_memory_t memory = llama_get_memory(context_);
  for (size_t from = first; from < last; from += window) {
    llama_memory_seq_cp(memory, sequence, scratch, static_cast<llama_pos>(from),
                        static_cast<llama_pos>(std::min(from + window, last)));
    Result<std::vector<uint8_t>> state = SaveRaw(scratch, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    llama_memory_seq_rm(memory, scratch, -1, -1);
    if (!state) return state.status();
    states.push_back(std::move(*state));
  }
  return CompleteState(std::move(states), layout_);
}

Result<KvState> Session::TakeKv(int sequence) const {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  if (rows(sequence) == 0) {
    return Status(StatusCode::kInvalidArgument, attached(sequence) == 0
                                                    ? "the session is empty: there is nothing to take"
                                                    : "there are no tokens after the cards: there is nothing to take");
  }
  QKV_ASSIGN_OR_RETURN(std::vector<uint8_t> bytes, SaveState(sequence));
  QKV_ASSIGN_OR_RETURN(KvState state, KvState::Parse(std::move(bytes), layout_, threads_));
  if (state.tokens() != rows(sequence)) {
    return Status(StatusCode::kInternal,
                  fmt::format("the cache holds {} rows for {} tokens", state.tokens(), rows(sequence)));
  }
  return state;
}

Status Session::RestoreState(ByteSpan bytes, std::span<const int32_t> tokens, int sequence) {
  // Everything is checked before llama.cpp sees a byte: its reader may leave a half-changed sequence.
  QKV_ASSIGN_OR_RETURN(const std::vector<int32_t> positions, CheckState(bytes, layout_));
  if (positions.size() != tokens.size()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the state holds {} rows for {} tokens", positions.size(), tokens.size())};
  }
  // They ascend: the last tells whether they count from 0.
  if (positions.front() != 0 || static_cast<size_t>(positions.back()) + 1 != positions.size()) {
    return {StatusCode::kUnsupported, "only states whose positions count from 0 can be restored"};
  }
  return SetState(bytes, tokens, sequence);
}

Status Session::SetState(ByteSpan state, std::span<const int32_t> tokens, int sequence) {
  QKV_RETURN_IF_ERROR(CheckTokens(tokens));
  // With room for it, llama.cpp has no reason to refuse: where it does refuse, it drops the sequence.
  QKV_RETURN_IF_ERROR(CheckRoomFor(tokens.size(), 0, sequence));
  ForgetEnd(sequence);
  Remove(sequence, 0);
  if (fused_ != nullptr) fused_->Detach(sequence);
  size_t read = 0;
  try {
    read = llama_state_seq_set_data(context_, state.data(), state.size(), sequence);
  } catch (const std::exception&) {
    read = 0;
  }
  if (read != state.size()) {
    Clear(sequence);
    return {StatusCode::kInternal,
            "llama.cpp refused the restored state" + LlamaErrorSuffix() + "; the sequence is empty now"};
  }
  tokens_[static_cast<size_t>(sequence)].assign(tokens.begin(), tokens.end());
  Keep(sequence, 0);
  return {};
}

Status Session::Truncate(size_t tokens, int sequence) {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  if (tokens >= this->tokens(sequence).size()) return {};
  if (tokens < attached(sequence)) KeepCards(tokens, sequence);
  if (!Remove(sequence, tokens)) return {StatusCode::kInternal, "llama.cpp cannot remove tokens from the sequence"};
  tokens_[static_cast<size_t>(sequence)].resize(tokens);
  ForgetEnd(sequence);
  return {};
}

void Session::Clear(int sequence) {
  if (fused_ != nullptr) fused_->Detach(sequence);
  if (OthersRows(sequence) == 0) {
    llama_memory_clear(llama_get_memory(context_), /*data=*/true);
  } else {
    Remove(sequence, 0);
  }
  tokens_[static_cast<size_t>(sequence)].clear();
  ForgetEnd(sequence);
}

// What is known of a sequence's last tokens, which are no longer its last.
void Session::ForgetEnd(int sequence) {
  if (logits_sequence_ == sequence) logits_sequence_ = -1;
  if (window_sequence_ == sequence) window_ = {};
}

}  // namespace qkvshare
