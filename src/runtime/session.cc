#include "runtime/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "llama.h"
#include "runtime/batch.h"
#include "runtime/kept_queries.h"

namespace qkvshare {
Status Session::DecodeNow(std::span<const SequenceTokens> parts, bool all_logits) {
  size_t count = 0;
  for (const SequenceTokens& part : parts) count += part.tokens.size();
  Batch batch(count, 0);
  std::vector<int32_t> rows(logits_rows_.size(), -1);
  for (const auto& [sequence, tokens] : parts) {
    const size_t held = this->tokens(sequence).size();
    for (size_t i = 0; i < tokens.size(); ++i)
      batch.AddTo(sequence, tokens[i], held + i, all_logits || i + 1 == tokens.size());
    rows[static_cast<size_t>(sequence)] = batch.get().n_tokens - 1;
  }
  logits_rows_.assign(logits_rows_.size(), -1);
  int32_t result = 0;
  if (Status status = card_context_->Decode(batch.get(), &result); !status.ok()) {
    for (const SequenceTokens& part : parts) SyncTokens(part.sequence);
    return status;
  }
  for (const auto& [sequence, tokens] : parts) {
    std::vector<int32_t>& held = tokens_[static_cast<size_t>(sequence)];
    held.insert(held.end(), tokens.begin(), tokens.end());
    Keep(sequence, held.size() - tokens.size());
  }
  logits_rows_ = std::move(rows);
  return {};
}

// DecodeNow, and the queries that are to be kept. ahead: tokens that the next calls of the same prefill have.
Status Session::Decode(std::span<const SequenceTokens> parts, bool all_logits, size_t ahead) {
  if (kept_tokens_ == 0 || ahead >= kept_tokens_) return DecodeNow(parts, all_logits);
  card_context_->probe()->CaptureFrom(0);
  const Status status = DecodeNow(parts, all_logits);
  card_context_->probe()->StopCapturing();
  const std::vector<LayerQueries> queries = TakeQueries();
  QKV_RETURN_IF_ERROR(status);
  size_t row = 0;
  for (const auto& [sequence, tokens] : parts) {
    AttentionWindow& window = windows_[static_cast<size_t>(sequence)];
    const size_t end = this->tokens(sequence).size();
    for (size_t position = end - tokens.size(); position < end; ++position, ++row) {
      if ((position + 1) % kept_stride_ != 0) continue;
      AppendQueries(queries, row, static_cast<uint32_t>(position - attached(sequence)), &window);
    }
    const size_t own = rows(sequence);
    LeaveQueries(static_cast<uint32_t>(own - std::min<size_t>(own, kept_tokens_)), static_cast<uint32_t>(own), &window);
  }
  return {};
}

Status Session::KeepQueries(uint32_t tokens, uint32_t stride) {
  if (tokens > 0 && !flash_attention())
    return {StatusCode::kUnsupported, "policies that look at attention need flash attention; use -fa on"};
  kept_tokens_ = tokens;
  kept_stride_ = std::max(stride, 1u);
  windows_.assign(windows_.size(), {});
  return {};
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
  if (options.window > 0 && !flash_attention())
    return {StatusCode::kUnsupported, "policies that look at attention need flash attention; use -fa on"};
  if (options.window > 0 && kept_tokens_ > 0)
    return {StatusCode::kInvalidArgument, "queries are kept already: leave the prefill's window out"};
  if (kept_tokens_ == 0) windows_.assign(windows_.size(), {});
  const size_t start = this->tokens(sequence).size();
  const size_t window_start = tokens.size() - std::min<size_t>(options.window, tokens.size());
  for (size_t done = 0; done < tokens.size();) {
    const size_t n = std::min<size_t>(batch_, tokens.size() - done);
    const bool capture = options.window > 0 && done + n > window_start;
    if (capture)
      card_context_->probe()->CaptureFrom(static_cast<uint32_t>(window_start > done ? window_start - done : 0));
    const SequenceTokens part{sequence, tokens.subspan(done, n)};
    const Status status = Decode({&part, 1}, options.logits != nullptr, tokens.size() - done - n);
    card_context_->probe()->StopCapturing();
    if (!status.ok()) {
      card_context_->probe()->TakeQueries();
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

Status Session::CheckRoomFor(std::span<const SequenceTokens> parts) const {
  size_t needed = 0;
  for (int sequence = 0; sequence < options_.sequences; ++sequence) needed += rows(sequence);
  for (const auto& [sequence, tokens] : parts) {
    QKV_RETURN_IF_ERROR(CheckRoom(this->tokens(sequence).size() + tokens.size(), sequence));
    needed += tokens.size();
  }
  if (needed <= cells_) return {};
  return {StatusCode::kOutOfRange, fmt::format("the context is too short: {} tokens needed for all sequences, {} "
                                               "available; use a larger -c",
                                               needed, cells_)};
}

Status Session::CheckTogether(std::span<const SequenceTokens> parts) const {
  size_t count = 0;
  std::vector<bool> taken(tokens_.size());
  for (const auto& [sequence, tokens] : parts) {
    QKV_RETURN_IF_ERROR(CheckSequence(sequence));
    QKV_RETURN_IF_ERROR(CheckTokens(tokens));
    if (tokens.empty()) {
      return {StatusCode::kInvalidArgument, fmt::format("there are no tokens to decode in sequence {}", sequence)};
    }
    if (taken[static_cast<size_t>(sequence)]) {
      return {StatusCode::kInvalidArgument,
              fmt::format("sequence {} is there twice: give its tokens at once", sequence)};
    }
    taken[static_cast<size_t>(sequence)] = true;
    count += tokens.size();
  }
  if (count > 0 && count <= batch_) return {};
  return {StatusCode::kInvalidArgument, fmt::format("{} tokens in one call: give 1 to {}", count, batch_)};
}

Status Session::DecodeTogether(std::span<const SequenceTokens> parts) {
  QKV_RETURN_IF_ERROR(CheckTogether(parts));
  QKV_RETURN_IF_ERROR(CheckRoomFor(parts));
  if (kept_tokens_ == 0) windows_.assign(windows_.size(), {});
  return Decode(parts, /*all_logits=*/false, /*ahead=*/0);
}

// The captured queries, as they were before llama.cpp rotated them.
std::vector<LayerQueries> Session::TakeQueries() {
  std::vector<LayerQueries> layers = card_context_->probe()->TakeQueries();
  for (size_t i = 0; i < std::min(layers.size(), state_layout().formats.size()); ++i) {
    RotateBlocks(state_layout().formats[i].keys.rotation, layers[i].q.data(), layers[i].q.size());
    layers[i].window = state_layout().formats[i].window;
  }
  return layers;
}

// The captured queries of tokens [first, end).
void Session::TakeWindow(size_t first, size_t end, const PrefillOptions& options, int sequence) {
  AttentionWindow& window = windows_[static_cast<size_t>(sequence)];
  window.layers = TakeQueries();
  for (size_t i = first; i < end; ++i) window.last_visible.push_back(static_cast<uint32_t>(i - attached(sequence)));
  ThinWindow(options.window_stride, &window);
}

const float* Session::logits(int sequence) const {
  if (!CheckSequence(sequence).ok()) return nullptr;
  const int32_t row = logits_rows_[static_cast<size_t>(sequence)];
  return row >= 0 ? llama_get_logits_ith(context_, row) : nullptr;
}

Result<std::vector<uint8_t>> Session::SaveState(int sequence) const {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  return card_context_->SaveState(sequence, attached(sequence), tokens(sequence).size());
}

Result<KvState> Session::TakeKv(int sequence) const {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  return card_context_->TakeKv(sequence, attached(sequence), tokens(sequence).size());
}

Status Session::RestoreState(ByteSpan bytes, std::span<const int32_t> tokens, int sequence) {
  // Everything is checked before llama.cpp sees a byte: its reader may leave a half-changed sequence.
  QKV_ASSIGN_OR_RETURN(const std::vector<int32_t> positions, CheckState(bytes, state_layout()));
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
  card_context_->Detach(sequence);
  if (Status status = card_context_->SetState(state, sequence); !status.ok()) {
    Clear(sequence);
    return status;
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
  AttentionWindow window = std::move(windows_[static_cast<size_t>(sequence)]);
  ForgetEnd(sequence);
  if (kept_tokens_ == 0) return {};
  LeaveQueries(0, static_cast<uint32_t>(rows(sequence)), &window);
  if (!window.empty()) SetWindow(std::move(window), sequence);
  return {};
}

void Session::Clear(int sequence) {
  card_context_->Detach(sequence);
  if (OthersRows(sequence) == 0) {
    llama_memory_clear(llama_get_memory(context_), /*data=*/true);
  } else {
    Remove(sequence, 0);
  }
  tokens_[static_cast<size_t>(sequence)].clear();
  ForgetEnd(sequence);
}

Status Session::AttachCards(std::vector<PlacedCard> cards, int sequence) {
  const std::vector<CardPart> parts = PartsOf(cards);
  QKV_RETURN_IF_ERROR(fused());
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  QKV_RETURN_IF_ERROR(card_context_->CheckAttach(parts));
  QKV_RETURN_IF_ERROR(CheckCardList(parts));
  std::vector<int32_t> tokens = TokensOf(parts);
  QKV_RETURN_IF_ERROR(CheckRoomFor(tokens.size(), tokens.size(), sequence));
  QKV_RETURN_IF_ERROR(card_context_->Attach(std::move(cards), sequence));
  ForgetEnd(sequence);
  Remove(sequence, 0);
  tokens_[static_cast<size_t>(sequence)] = std::move(tokens);
  return {};
}

// Leaves `tokens` of the tokens that cards hold.
void Session::KeepCards(size_t tokens, int sequence) {
  std::vector<PlacedCard> kept;
  for (PlacedCard placed : cards(sequence)) {
    if (placed.offset >= tokens) break;
    placed.tokens = std::min(placed.tokens, static_cast<uint32_t>(tokens) - placed.offset);
    kept.push_back(std::move(placed));
  }
  (void)card_context_->Attach(std::move(kept), sequence);  // parts of what was attached
}

// What is known of a sequence's last tokens, which are no longer its last.
void Session::ForgetEnd(int sequence) {
  logits_rows_[static_cast<size_t>(sequence)] = -1;
  windows_[static_cast<size_t>(sequence)] = {};
}

}  // namespace qkvshare
