#include "runtime/fused_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "llama.h"

namespace qkvshare {
namespace {

// Whether two sequences see the very same tokens: then they are attended to together.
bool IsSame(const PlacedCard& a, const PlacedCard& b) {
  return a.card == b.card && a.offset == b.offset && a.tokens == b.tokens;
}

// An order that does not depend on which other sequences take part, since sums are rounded in it.
bool IsBefore(const FusedCall::Source& a, const FusedCall::Source& b) {
  const auto key = [](const PlacedCard& placed) {
    return std::tuple(placed.offset, placed.tokens, placed.card->card().content_id());
  };
  return key(a.card) < key(b.card);
}

}  // namespace

Result<std::unique_ptr<FusedContext>> FusedContext::Create() {
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  QKV_ASSIGN_OR_RETURN(const AttendKernels* attend, SelectAttendKernels());
  return std::unique_ptr<FusedContext>(new FusedContext(*kernels, *attend));
}

Status FusedContext::Attach(int sequence, std::vector<PlacedCard> cards) {
  uint32_t end = 0;
  for (const PlacedCard& placed : cards) {
    if (placed.tokens == 0 || placed.tokens > placed.card->card().tokens()) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{} tokens of a card of {}", placed.tokens, placed.card->card().tokens())};
    }
    if (placed.offset < end || placed.end() > static_cast<uint32_t>(INT32_MAX)) {
      return {StatusCode::kInvalidArgument,
              fmt::format("a card at position {}, but the card before it ends at {}", placed.offset, end)};
    }
    end = placed.end();
  }
  const auto index = static_cast<size_t>(sequence);
  if (cards_.size() <= index) cards_.resize(index + 1);
  cards_[index] = std::move(cards);
  return {};
}

void FusedContext::Detach(int sequence) {
  if (static_cast<size_t>(sequence) < cards_.size()) cards_[static_cast<size_t>(sequence)].clear();
}

const std::vector<PlacedCard>& FusedContext::cards(int sequence) const {
  static const std::vector<PlacedCard> kNone;
  return static_cast<size_t>(sequence) < cards_.size() ? cards_[static_cast<size_t>(sequence)] : kNone;
}

uint32_t FusedContext::end(int sequence) const {
  const std::vector<PlacedCard>& held = cards(sequence);
  return held.empty() ? 0 : held.back().end();
}

Result<FusedCall> FusedContext::CallOf(const llama_batch& batch, uint32_t most_tokens) const {
  FusedCall call;
  for (int32_t i = 0; i < batch.n_tokens; ++i) {
    const int sequence = batch.seq_id[i][0];
    for (const PlacedCard& placed : cards(sequence)) {
      auto source = std::find_if(call.sources.begin(), call.sources.end(),
                                 [&](const FusedCall::Source& other) { return IsSame(other.card, placed); });
      if (source == call.sources.end()) source = call.sources.insert(source, {placed, {}});
      source->tokens.push_back(static_cast<uint32_t>(i));
    }
    if (batch.n_seq_id[i] > 1) {
      const auto has_cards = [&](int32_t id) { return !cards(id).empty(); };
      if (std::any_of(batch.seq_id[i], batch.seq_id[i] + batch.n_seq_id[i], has_cards))
        return Status(StatusCode::kInvalidArgument, "a token of several sequences, of which one has cards");
    }
    if (batch.pos[i] < static_cast<int32_t>(end(sequence))) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("a token at position {}, but the sequence's cards end at {}", batch.pos[i], end(sequence)));
    }
  }
  if (call.sources.empty()) return call;
  if (static_cast<uint32_t>(batch.n_tokens) > most_tokens) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{} tokens in one call, but with cards attached at most {} (n_ubatch) can be decoded at once",
                    batch.n_tokens, most_tokens));
  }
  call.tokens.assign(batch.token, batch.token + batch.n_tokens);
  call.positions.assign(batch.pos, batch.pos + batch.n_tokens);
  std::sort(call.sources.begin(), call.sources.end(), IsBefore);
  return call;
}

Status FusedContext::Decode(llama_context* context, const llama_batch& batch, int32_t* result) {
  QKV_ASSIGN_OR_RETURN(FusedCall call, CallOf(batch, std::min(llama_n_ubatch(context), llama_n_batch(context))));
  attention_.Begin(std::move(call));
  try {
    *result = llama_decode(context, batch);
  } catch (...) {
    (void)attention_.End();
    throw;
  }
  const Status status = attention_.End();
  return *result == 0 ? status : Status();
}

}  // namespace qkvshare
