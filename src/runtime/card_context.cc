#include "runtime/card_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "llama.h"
#include "runtime/backend.h"
#include "runtime/fused_check.h"
#include "runtime/restore.h"

namespace qkvshare {

Result<std::unique_ptr<CardContext>> CardContext::Create(const Model& model, bool fused) {
  std::unique_ptr<CardContext> made(new CardContext(model));
  if (fused) {
    QKV_ASSIGN_OR_RETURN(made->fused_, FusedContext::Create());
  }
  made->fused_status_ = {StatusCode::kInvalidArgument, "there is no context yet"};
  return made;
}

void CardContext::SetCallback(llama_context_params* params) {
  if (params->cb_eval == OnNode && params->cb_eval_user_data == this) return;
  // Parameters that served another context already: the program's callback, not that context's.
  const auto* other = params->cb_eval == OnNode ? static_cast<const CardContext*>(params->cb_eval_user_data) : nullptr;
  next_callback_ = other != nullptr ? other->next_callback_ : params->cb_eval;
  next_data_ = other != nullptr ? other->next_data_ : params->cb_eval_user_data;
  params->cb_eval = OnNode;
  params->cb_eval_user_data = this;
}

// The owner's callback does not see what Bind decodes.
bool CardContext::OnNode(ggml_tensor* node, bool ask, void* self) {
  auto* context = static_cast<CardContext*>(self);
  if (context->fused_ != nullptr) context->fused_->BeforeNode(node);
  if (!ask) {
    if (context->probe_wants_) GraphProbe::Callback(node, ask, &context->probe_);
    return !context->next_wants_ || context->next_callback_(node, ask, context->next_data_);
  }
  context->called_ = true;
  context->probe_wants_ = GraphProbe::Callback(node, ask, &context->probe_);
  context->next_wants_ =
      context->next_callback_ != nullptr && context->bound_ && context->next_callback_(node, ask, context->next_data_);
  if (context->fused_ != nullptr) context->fused_->AtNode(node);
  return context->probe_wants_ || context->next_wants_;
}

Status CardContext::CheckBinding(llama_context* context) const {
  const auto wrong = [](const char* what) { return Status(StatusCode::kInvalidArgument, what); };
  if (context_ != nullptr) return wrong("there is a context already: each needs one of its own");
  if (llama_get_model(context) != model_.handle()) return wrong("the context is of another model");
  llama_memory_t memory = llama_get_memory(context);
  if (memory == nullptr) return {StatusCode::kUnsupported, "the context has no cache"};
  for (uint32_t i = 0; i < llama_n_seq_max(context); ++i) {
    if (llama_memory_seq_pos_max(memory, static_cast<llama_seq_id>(i)) >= 0)
      return wrong("the context is not empty: bind it before anything is decoded in it");
  }
  return {};
}

Status CardContext::Bind(llama_context* context, const std::string& kind) {
  QKV_RETURN_IF_ERROR(CheckBinding(context));
  context_ = context;
  if (const auto known = kind.empty() ? nullptr : model_.Recall(kind); known != nullptr) {
    facts_ = known->facts;
    fused_status_ = known->fused;
    SetLayers();
    bound_ = true;
    return {};
  }
  called_ = false;
  Status status;
  try {
    status = Learn();
  } catch (const std::exception& e) {
    status = {StatusCode::kInternal, fmt::format("llama.cpp failed to decode: {}", e.what())};
  }
  Detach(0);  // of the self-test
  llama_memory_clear(llama_get_memory(context), /*data=*/true);
  if (!called_) {
    status = {StatusCode::kInvalidArgument,
              "the context was made without this callback: set it in the parameters that the context is made with"};
  }
  if (!status.ok()) context_ = nullptr;
  bound_ = status.ok();
  // What need not be so next time (no memory, a decode call that was cancelled) is not remembered.
  const bool lasts = fused_status_.ok() || fused_status_.code() == StatusCode::kUnsupported;
  if (bound_ && lasts && !kind.empty())
    model_.Remember(kind, std::make_shared<const KnownContext>(KnownContext{facts_, fused_status_}));
  return status;
}

void CardContext::SetLayers() {
  if (fused_ == nullptr) return;
  std::vector<FusedLayer> layers;
  for (size_t i = 0; i < facts_.ropes.size(); ++i) layers.push_back({facts_.layout.format(i).window, facts_.ropes[i]});
  fused_->SetLayers(std::move(layers));
}

Status CardContext::Learn() {
  QKV_ASSIGN_OR_RETURN(facts_, LearnContext(model_, context_, &probe_));
  if (fused_ == nullptr) {
    fused_status_ = {StatusCode::kUnsupported, "attention over cards was not asked for"};
    return {};
  }
  SetLayers();
  fused_status_ = {};  // for the test
  fused_status_ = CheckFused(this);
  return {};
}

int CardContext::threads() const { return std::max(1, llama_n_threads(context_)); }

Status CardContext::CheckSequence(int sequence) const {
  const uint32_t sequences = llama_n_seq_max(context_);
  if (sequence >= 0 && static_cast<uint32_t>(sequence) < sequences) return {};
  return {StatusCode::kInvalidArgument, fmt::format("there is no sequence {}: give 0 to {}", sequence, sequences - 1)};
}

Status CardContext::CheckAttach(std::span<const CardPart> parts) const {
  QKV_RETURN_IF_ERROR(fused_status_);
  for (const CardPart& part : parts) QKV_RETURN_IF_ERROR(CheckCardFits(*part.card, *this));
  QKV_RETURN_IF_ERROR(CheckCardOrder(parts));  // there is a shift() only where this is so
  const bool moved = std::any_of(parts.begin(), parts.end(), [](const CardPart& part) { return part.shift() != 0; });
  return moved ? facts_.rope_status : Status();
}

Status CardContext::Attach(std::vector<PlacedCard> cards, int sequence) {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  QKV_RETURN_IF_ERROR(CheckAttach(PartsOf(cards)));
  return fused_->Attach(sequence, std::move(cards));
}

void CardContext::Detach(int sequence) {
  if (fused_ != nullptr) fused_->Detach(sequence);
}

void CardContext::Clear(int sequence) {
  Detach(sequence);
  llama_memory_seq_rm(llama_get_memory(context_), sequence, -1, -1);
}

Status CardContext::Copy(int from, int to) {
  QKV_RETURN_IF_ERROR(CheckSequence(from));
  QKV_RETURN_IF_ERROR(CheckSequence(to));
  if (!IsEmpty(to) || !cards(to).empty())
    return {StatusCode::kInvalidArgument, fmt::format("sequence {} is not empty: detach it first", to)};
  if (fused_ != nullptr) {
    QKV_RETURN_IF_ERROR(fused_->Attach(to, cards(from)));
    fused_->SetStart(to, fused_->start(from));
  }
  llama_memory_seq_cp(llama_get_memory(context_), from, to, -1, -1);
  return {};
}

const std::vector<PlacedCard>& CardContext::cards(int sequence) const {
  static const std::vector<PlacedCard> kNone;
  return fused_ != nullptr ? fused_->cards(sequence) : kNone;
}

uint32_t CardContext::end(int sequence) const { return fused_ != nullptr ? fused_->end(sequence) : 0; }

Status CardContext::Decode(const llama_batch& batch, int32_t* result) {
  *result = -1;
  try {
    if (fused_ != nullptr) {
      QKV_RETURN_IF_ERROR(fused_->Decode(context_, batch, result));
    } else {
      *result = llama_decode(context_, batch);
    }
  } catch (const std::exception& e) {
    return {StatusCode::kInternal, fmt::format("llama.cpp failed to decode: {}", e.what())};
  }
  return DecodeStatus(*result);
}

bool CardContext::IsEmpty(int sequence) const {
  return llama_memory_seq_pos_max(llama_get_memory(context_), sequence) < 0;
}

// One to lend rows to.
int CardContext::EmptySequence() const {
  int sequence = static_cast<int>(llama_n_seq_max(context_)) - 1;
  while (sequence >= 0 && !IsEmpty(sequence)) --sequence;
  return sequence;
}

Result<std::vector<uint8_t>> CardContext::SaveRaw(int sequence, uint32_t flags) const {
  std::vector<uint8_t> state(llama_state_seq_get_size_ext(context_, sequence, flags));
  if (state.empty() ||
      llama_state_seq_get_data_ext(context_, state.data(), state.size(), sequence, flags) != state.size()) {
    return Status(StatusCode::kInternal, "llama.cpp cannot save the sequence's state" + LlamaErrorSuffix());
  }
  return state;
}

Result<std::vector<uint8_t>> CardContext::SaveState(int sequence, size_t first, size_t end) const {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  std::vector<std::vector<uint8_t>> states(1);
  QKV_ASSIGN_OR_RETURN(states[0], SaveRaw(sequence, 0));
  if (first == end) return std::move(states[0]);
  // llama.cpp leaves out what has left the window: that is saved from a sequence that it has not left.
  const size_t window = facts_.layout.window();
  const size_t last = window > 0 ? end - std::min(window, end - first) : first;
  llama_memory_t memory = llama_get_memory(context_);
  const int lent = last > first ? EmptySequence() : 0;
  if (lent < 0) {
    return Status(StatusCode::kUnsupported,
                  "a model with sliding windows: taking a card needs an empty sequence beside the card's; make the "
                  "context with a larger n_seq_max");
  }
  for (size_t from = first; from < last; from += window) {
    llama_memory_seq_cp(memory, sequence, lent, static_cast<llama_pos>(from),
                        static_cast<llama_pos>(std::min(from + window, last)));
    Result<std::vector<uint8_t>> state = SaveRaw(lent, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    llama_memory_seq_rm(memory, lent, -1, -1);
    if (!state) return state.status();
    states.push_back(std::move(*state));
  }
  return CompleteState(std::move(states), facts_.layout);
}

Result<KvState> CardContext::TakeKv(int sequence, size_t first, size_t end) const {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  if (first >= end) {
    return Status(StatusCode::kInvalidArgument, first == 0
                                                    ? "the sequence is empty: there is nothing to take"
                                                    : "there are no tokens after the cards: there is nothing to take");
  }
  llama_memory_t memory = llama_get_memory(context_);
  const llama_pos lowest = llama_memory_seq_pos_min(memory, sequence);
  const llama_pos highest = llama_memory_seq_pos_max(memory, sequence);
  if (highest != static_cast<llama_pos>(end) - 1 || lowest > highest) {
    return Status(StatusCode::kInvalidArgument,
                  highest < 0 ? fmt::format("{} tokens, but the sequence is empty", end - first)
                              : fmt::format("{} tokens from position {}, but the sequence ends at {}", end - first,
                                            first, highest));
  }
  QKV_ASSIGN_OR_RETURN(std::vector<uint8_t> bytes, SaveState(sequence, first, end));
  QKV_ASSIGN_OR_RETURN(KvState state, KvState::Parse(std::move(bytes), facts_.layout, threads()));
  const bool same = state.tokens() == end - first && state.positions().front() == static_cast<int32_t>(first);
  if (same) return state;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} tokens from position {}, but the sequence holds {} from position {}", end - first,
                            first, state.tokens(), state.positions().front()));
}

// Upper bound of the rows that are taken.
size_t CardContext::Rows() const {
  llama_memory_t memory = llama_get_memory(context_);
  size_t rows = 0;
  for (uint32_t i = 0; i < llama_n_seq_max(context_); ++i) {
    const auto sequence = static_cast<llama_seq_id>(i);
    const llama_pos last = llama_memory_seq_pos_max(memory, sequence);
    if (last >= 0) rows += static_cast<size_t>(last - llama_memory_seq_pos_min(memory, sequence)) + 1;
  }
  return rows;
}

Status CardContext::SetState(ByteSpan state, int sequence) {
  QKV_RETURN_IF_ERROR(CheckSequence(sequence));
  size_t read = 0;
  try {
    read = llama_state_seq_set_data(context_, state.data(), state.size(), sequence);
  } catch (const std::exception&) {
    read = 0;
  }
  if (read == state.size()) {
    if (fused_ != nullptr) fused_->SetStart(sequence, llama_memory_seq_pos_min(llama_get_memory(context_), sequence));
    return {};
  }
  llama_memory_seq_rm(llama_get_memory(context_), sequence, -1, -1);
  const std::string why = LlamaErrorSuffix();
  if (const Result<std::vector<int32_t>> positions = CheckState(state, facts_.layout);
      positions && Rows() + positions->size() > llama_n_ctx(context_)) {
    return {StatusCode::kOutOfRange, fmt::format("the context is too short: {} tokens needed beside {}, {} in all{}",
                                                 positions->size(), Rows(), llama_n_ctx(context_), why)};
  }
  return {StatusCode::kInternal, "llama.cpp refused the restored state" + why + "; the sequence is empty now"};
}

}  // namespace qkvshare
