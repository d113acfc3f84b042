#include "runtime/fused_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>

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

// A batch with sequences and positions, which llama.cpp lets callers leave out.
class WholeBatch {
 public:
  // next: the position that follows what a sequence holds.
  template <typename Next>
  WholeBatch(const llama_batch& given, const Next& next) : batch_(given) {
    const auto count = static_cast<size_t>(std::max(given.n_tokens, 0));
    if (given.n_seq_id == nullptr || given.seq_id == nullptr) {
      counts_.assign(count, 1);
      sequences_.assign(count, &first_);
      batch_.n_seq_id = counts_.data();
      batch_.seq_id = sequences_.data();
    }
    if (given.pos != nullptr) return;
    std::map<int, llama_pos> position;
    for (size_t i = 0; i < count; ++i) {
      const int sequence = batch_.seq_id[i][0];
      positions_.push_back(position.try_emplace(sequence, next(sequence)).first->second++);
    }
    batch_.pos = positions_.data();
  }
  ~WholeBatch() = default;
  WholeBatch(const WholeBatch&) = delete;
  WholeBatch& operator=(const WholeBatch&) = delete;
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
  llama_seq_id first_ = 0;
  std::vector<int32_t> counts_;
  std::vector<llama_seq_id*> sequences_;
  std::vector<llama_pos> positions_;
};

}  // namespace

Result<std::unique_ptr<FusedContext>> FusedContext::Create() {
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  QKV_ASSIGN_OR_RETURN(const AttendKernels* attend, SelectAttendKernels());
  return std::unique_ptr<FusedContext>(new FusedContext(*kernels, *attend));
}

void FusedContext::SetLayers(std::vector<FusedLayer> layers) {
  windowed_ = std::any_of(layers.begin(), layers.end(), [](const FusedLayer& layer) { return layer.window > 0; });
  attention_.SetLayers(std::move(layers));
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
  for (PlacedCard& placed : cards) placed.card = Shared(placed.card);
  const auto index = static_cast<size_t>(sequence);
  if (cards_.size() <= index) cards_.resize(index + 1);
  cards_[index] = std::move(cards);
  SetStart(sequence, -1);
  attention_.SetGuard(HasCards());
  return {};
}

// The same card as some sequence has it already: what is the same object is read once for all that see it.
std::shared_ptr<const AttachedCard> FusedContext::Shared(const std::shared_ptr<const AttachedCard>& card) const {
  for (const std::vector<PlacedCard>& held : cards_) {
    for (const PlacedCard& other : held) {
      const Card& theirs = other.card->card();
      if (&theirs == &card->card()) return other.card;
      // Anyone can write a content id: sequences must not get at each other's cards by it.
      if (theirs.content_id() == card->card().content_id() && std::ranges::equal(theirs.bytes(), card->card().bytes()))
        return other.card;
    }
  }
  return card;
}

void FusedContext::Detach(int sequence) {
  if (static_cast<size_t>(sequence) < cards_.size()) cards_[static_cast<size_t>(sequence)].clear();
  SetStart(sequence, -1);
  attention_.SetGuard(HasCards());
}

const std::vector<PlacedCard>& FusedContext::cards(int sequence) const {
  static const std::vector<PlacedCard> kNone;
  return static_cast<size_t>(sequence) < cards_.size() ? cards_[static_cast<size_t>(sequence)] : kNone;
}

uint32_t FusedContext::end(int sequence) const {
  const std::vector<PlacedCard>& held = cards(sequence);
  return held.empty() ? 0 : held.back().end();
}

void FusedContext::SetStart(int sequence, int32_t position) {
  const auto index = static_cast<size_t>(sequence);
  if (starts_.size() <= index) starts_.resize(index + 1, -1);
  starts_[index] = position;
}

int32_t FusedContext::start(int sequence) const {
  return static_cast<size_t>(sequence) < starts_.size() ? starts_[static_cast<size_t>(sequence)] : -1;
}

bool FusedContext::HasCards() const {
  return std::any_of(cards_.begin(), cards_.end(), [](const auto& cards) { return !cards.empty(); });
}

Status FusedContext::CheckToken(const llama_batch& batch, int32_t i, uint32_t sequences) const {
  const auto invalid = [](std::string what) { return Status(StatusCode::kInvalidArgument, std::move(what)); };
  const std::span<const int32_t> ids(batch.seq_id[i], static_cast<size_t>(std::max(batch.n_seq_id[i], 0)));
  if (ids.empty()) return invalid(fmt::format("token {} of the batch is of no sequence", i));
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= sequences)
      return invalid(fmt::format("there is no sequence {}: give 0 to {}", id, sequences - 1));
  }
  if (ids.size() > 1 && std::any_of(ids.begin(), ids.end(), [&](int32_t id) { return !cards(id).empty(); }))
    return invalid("a token of several sequences, of which one has cards");
  if (batch.pos[i] >= static_cast<int32_t>(end(ids[0]))) return {};
  return invalid(fmt::format("a token at position {}, but the sequence's cards end at {}", batch.pos[i], end(ids[0])));
}

Result<FusedCall> FusedContext::CallOf(const llama_batch& batch, const llama_context* context) const {
  FusedCall call;
  call.positions.assign(batch.pos, batch.pos + std::max(batch.n_tokens, 0));
  for (int32_t i = 0; i < batch.n_tokens; ++i) {
    QKV_RETURN_IF_ERROR(CheckToken(batch, i, llama_n_seq_max(context)));
    const int sequence = batch.seq_id[i][0];
    call.sequences[sequence].push_back(static_cast<uint32_t>(i));
    for (const PlacedCard& placed : cards(sequence)) {
      auto source = std::find_if(call.sources.begin(), call.sources.end(),
                                 [&](const FusedCall::Source& other) { return IsSame(other.card, placed); });
      if (source == call.sources.end()) source = call.sources.insert(source, {placed, {}});
      source->tokens.push_back(static_cast<uint32_t>(i));
    }
  }
  if (call.sources.empty()) return call;
  if (batch.token == nullptr) {
    return Status(StatusCode::kUnsupported, "a batch of embeddings: with cards attached give tokens");
  }
  const uint32_t most_tokens = std::min(llama_n_ubatch(context), llama_n_batch(context));
  if (static_cast<uint32_t>(batch.n_tokens) > most_tokens) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{} tokens in one call, but with cards attached at most {} (n_ubatch) can be decoded at once",
                    batch.n_tokens, most_tokens));
  }
  call.tokens.assign(batch.token, batch.token + batch.n_tokens);
  std::sort(call.sources.begin(), call.sources.end(), IsBefore);
  return call;
}

// Reports a call of llama_decode at least once, and as long as there are tokens that it may have decoded without their
// cards.
Status FusedContext::CheckStray(llama_context* context) {
  const bool is_new = attention_.TakeStray();
  stray_ = stray_ || is_new;
  if (!stray_) return {};
  const std::string what = "llama_decode was called while cards are attached, and its logits are NaN: ";
  // It is not known which tokens it decoded.
  for (int sequence = 0; sequence < static_cast<int>(llama_n_seq_max(context)); ++sequence) {
    const auto first = static_cast<llama_pos>(end(sequence));
    if (llama_memory_seq_pos_max(llama_get_memory(context), sequence) < first) continue;
    return {StatusCode::kInvalidArgument,
            fmt::format("{}remove the tokens of sequence {} from position {} on (llama_memory_seq_rm), and decode them "
                        "through this function",
                        what, sequence, first)};
  }
  stray_ = false;
  return is_new ? Status(StatusCode::kInvalidArgument, what + "decode through this function") : Status();
}

// Own rows that begin elsewhere than Decode began them, or not at 0 where it did not, continue something else.
Status FusedContext::CheckStarts(llama_context* context, const FusedCall& call) const {
  for (const auto& [sequence, tokens] : call.sequences) {
    const bool has_cards = !cards(sequence).empty();
    const llama_pos first = llama_memory_seq_pos_min(llama_get_memory(context), sequence);
    if (first < 0 || (!has_cards && (windowed_ || first == 0))) continue;
    if (first == start(sequence) || (windowed_ && start(sequence) >= 0)) continue;
    return {
        StatusCode::kInvalidArgument,
        fmt::format("sequence {} has tokens from position {} on that were not decoded after its cards: remove them "
                    "(llama_memory_seq_rm); what llama_memory_seq_cp copies lacks the cards, qkv_attention_copy copies "
                    "both",
                    sequence, first)};
  }
  return {};
}

Status FusedContext::Decode(llama_context* context, const llama_batch& given, int32_t* result) {
  QKV_RETURN_IF_ERROR(CheckStray(context));
  const WholeBatch whole(given, [&](int sequence) -> llama_pos {
    if (sequence < 0 || static_cast<uint32_t>(sequence) >= llama_n_seq_max(context)) return 0;
    const llama_pos last = llama_memory_seq_pos_max(llama_get_memory(context), sequence);
    return std::max(last + 1, static_cast<llama_pos>(end(sequence)));
  });
  const llama_batch& batch = whole.get();
  QKV_ASSIGN_OR_RETURN(FusedCall call, CallOf(batch, context));
  QKV_RETURN_IF_ERROR(CheckStarts(context, call));
  std::map<int, llama_pos> begun;  // sequences that were empty
  for (const auto& [sequence, tokens] : call.sequences) {
    if (llama_memory_seq_pos_max(llama_get_memory(context), sequence) < 0) begun[sequence] = batch.pos[tokens.front()];
  }
  const bool has_cards = !call.sources.empty();
  const auto remove = [&] {
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
      for (int32_t j = 0; j < batch.n_seq_id[i]; ++j)
        llama_memory_seq_rm(llama_get_memory(context), batch.seq_id[i][j], batch.pos[i], -1);
    }
  };
  attention_.Begin(std::move(call));
  try {
    *result = llama_decode(context, has_cards ? batch : given);
  } catch (...) {
    (void)attention_.End();
    if (has_cards) remove();
    throw;
  }
  Status status = attention_.End();
  if (*result == 0 && !status.ok()) {
    remove();
    return status;
  }
  for (const auto& [sequence, first] : begun)
    SetStart(sequence, llama_memory_seq_pos_max(llama_get_memory(context), sequence) >= 0 ? first : -1);
  return {};
}

}  // namespace qkvshare
