#include "runtime/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "llama.h"
#include "runtime/backend.h"

namespace qkvshare {
namespace {

int DefaultThreads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

ggml_type GgmlType(CacheType type) {
  switch (type) {
    case CacheType::kF16: return GGML_TYPE_F16;
    case CacheType::kQ8_0: return GGML_TYPE_Q8_0;
    case CacheType::kQ4_0: return GGML_TYPE_Q4_0;
  }
  return GGML_TYPE_F16;
}

// Refused here rather than after a long prefill.
Status CheckShapes(const std::vector<LayerShape>& shapes) {
  for (const LayerShape& shape : shapes) {
    for (const size_t dim : {shape.dim(Side::kKeys), shape.dim(Side::kValues)}) {
      if (dim % 8 == 0 && dim <= kMaxHeadDim) continue;
      return {StatusCode::kUnsupported,
              fmt::format("the model's head size is {}; cards take multiples of 8 up to {}", dim, kMaxHeadDim)};
    }
  }
  return {};
}

// A batch of one sequence, freed on every way out.
class Batch {
 public:
  explicit Batch(size_t tokens) : batch_(llama_batch_init(static_cast<int32_t>(tokens), 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Add(int32_t token, size_t position, bool logits) {
    const int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = 0;
    batch_.logits[i] = static_cast<int8_t>(logits);
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

}  // namespace

Result<std::unique_ptr<Session>> Session::Create(const Model& model, const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session(model));
  session->threads_ = options.threads > 0 ? options.threads : DefaultThreads();
  session->batch_ = std::max(options.batch, 1u);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.context > 0 ? options.context : model.training_context();
  params.n_batch = params.n_ubatch = session->batch_;
  params.n_threads = params.n_threads_batch = session->threads_;
  params.rope_freq_base = options.rope_freq_base;
  params.rope_freq_scale = options.rope_freq_scale;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = params.type_v = GgmlType(options.cache_type);
  params.kv_unified = true;
  params.cb_eval = GraphProbe::Callback;
  params.cb_eval_user_data = &session->probe_;
  params.abort_callback = [](void* data) {
    return static_cast<Session*>(data)->cancelled_.load(std::memory_order_relaxed);
  };
  params.abort_callback_data = session.get();
  TakeLastLlamaError();  // of earlier calls
  try {
    session->context_ = llama_init_from_model(model.handle(), params);
    if (session->context_ == nullptr) {
      return Status(StatusCode::kOutOfRange,
                    fmt::format("llama.cpp cannot make a context of {} tokens{}; a smaller -c takes less memory",
                                params.n_ctx, LlamaErrorSuffix()));
    }
    // llama.cpp rounds the context up, but limits a decode call by what was asked for.
    session->context_tokens_ = std::min(params.n_ctx, llama_n_ctx(session->context_));
    session->batch_ = std::min({session->batch_, llama_n_batch(session->context_), llama_n_ubatch(session->context_)});
    QKV_RETURN_IF_ERROR(session->Probe(options.cache_type));
  } catch (const std::exception& e) {
    return Status(StatusCode::kInternal, fmt::format("llama.cpp failed to make a context: {}", e.what()));
  }
  return session;
}

Session::~Session() {
  if (context_ != nullptr) llama_free(context_);
}

Status Session::Probe(CacheType cache_type) {
  const llama_token bos = llama_vocab_bos(model_.vocab());
  const int32_t token = bos >= 0 ? bos : 0;
  probe_.StartDescribing();
  QKV_RETURN_IF_ERROR(Decode({&token, 1}, /*all_logits=*/false));
  QKV_ASSIGN_OR_RETURN(GraphProbe::Description description, probe_.FinishDescribing());
  QKV_RETURN_IF_ERROR(CheckShapes(description.shapes));
  if (cache_type == CacheType::kF16) {
    QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> state, SaveState());
    QKV_ASSIGN_OR_RETURN(layout_, LearnStateLayout(state, description.shapes));
  }
  identity_ = {model_.fingerprint(), description.rope, description.first_rope};
  Clear();
  return {};
}

Status Session::Decode(std::span<const int32_t> tokens, bool all_logits) {
  Batch batch(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i)
    batch.Add(tokens[i], tokens_.size() + i, all_logits || i + 1 == tokens.size());
  has_logits_ = false;
  int32_t error = -1;
  try {
    error = llama_decode(context_, batch.get());
  } catch (const std::exception& e) {
    SyncTokens(tokens_.size());
    return {StatusCode::kInternal, fmt::format("llama.cpp failed to decode: {}", e.what())};
  }
  if (error == 0) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    has_logits_ = true;
    return {};
  }
  SyncTokens(tokens_.size());
  if (error == 2) return {StatusCode::kCancelled, "cancelled"};
  if (error == 1) return {StatusCode::kOutOfRange, "the context is full; use a larger -c"};
  return {StatusCode::kInternal, fmt::format("llama.cpp failed to decode (error {}){}", error, LlamaErrorSuffix())};
}

// After a failed decode: drops whatever it left in the cache, so that rows and tokens agree.
void Session::SyncTokens(size_t at_most) {
  llama_memory_t memory = llama_get_memory(context_);
  llama_memory_seq_rm(memory, 0, static_cast<llama_pos>(at_most), -1);
  const llama_pos last = llama_memory_seq_pos_max(memory, 0);
  const size_t rows = last < 0 ? 0 : static_cast<size_t>(last) + 1;
  tokens_.resize(std::min(tokens_.size(), rows));
}

Status Session::CheckTokens(std::span<const int32_t> tokens) const {
  const int32_t vocab = model_.vocab_size();
  const auto known = [&](int32_t token) { return token >= 0 && token < vocab; };
  if (std::all_of(tokens.begin(), tokens.end(), known)) return {};
  return {StatusCode::kInvalidArgument, "a token id is not in the model's vocabulary"};
}

Status Session::CheckRoom(size_t tokens) const {
  if (tokens <= context()) return {};
  return {StatusCode::kOutOfRange,
          fmt::format("the context is too short: {} tokens needed, {} available; use a larger -c", tokens, context())};
}

Status Session::Prefill(std::span<const int32_t> tokens, const PrefillOptions& options) {
  window_ = {};
  if (tokens.empty()) return {StatusCode::kInvalidArgument, "there are no tokens to prefill"};
  QKV_RETURN_IF_ERROR(CheckTokens(tokens));
  QKV_RETURN_IF_ERROR(CheckRoom(tokens_.size() + tokens.size()));
  const size_t start = tokens_.size();
  const size_t window_start = tokens.size() - std::min<size_t>(options.window, tokens.size());
  for (size_t done = 0; done < tokens.size();) {
    const size_t n = std::min<size_t>(batch_, tokens.size() - done);
    const bool capture = options.window > 0 && done + n > window_start;
    if (capture) probe_.CaptureFrom(static_cast<uint32_t>(window_start > done ? window_start - done : 0));
    const Status status = Decode(tokens.subspan(done, n), options.logits != nullptr);
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
  if (options.window == 0) return {};
  window_.layers = probe_.TakeQueries();
  for (size_t i = window_start; i < tokens.size(); ++i)
    window_.last_visible.push_back(static_cast<uint32_t>(start + i));
  ThinWindow(options.window_stride, &window_);
  return {};
}

const float* Session::logits() const { return has_logits_ ? llama_get_logits_ith(context_, -1) : nullptr; }

Result<std::vector<uint8_t>> Session::SaveState() const {
  std::vector<uint8_t> state(llama_state_seq_get_size(context_, 0));
  if (state.empty() || llama_state_seq_get_data(context_, state.data(), state.size(), 0) != state.size()) {
    return Status(StatusCode::kInternal, "llama.cpp cannot save the sequence's state" + LlamaErrorSuffix());
  }
  return state;
}

Result<KvState> Session::TakeKv() const {
  if (tokens_.empty()) return Status(StatusCode::kInvalidArgument, "the session is empty: there is nothing to take");
  if (layout_.shapes.empty()) return Status(StatusCode::kUnsupported, "cards are taken from F16 caches only");
  QKV_ASSIGN_OR_RETURN(std::vector<uint8_t> bytes, SaveState());
  QKV_ASSIGN_OR_RETURN(KvState state, KvState::Parse(std::move(bytes), layout_));
  if (state.tokens() != tokens_.size()) {
    return Status(StatusCode::kInternal,
                  fmt::format("the cache holds {} rows for {} tokens", state.tokens(), tokens_.size()));
  }
  return state;
}

Status Session::RestoreState(ByteSpan bytes, std::span<const int32_t> tokens) {
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
  return SetState(bytes, tokens);
}

Status Session::SetState(ByteSpan state, std::span<const int32_t> tokens) {
  QKV_RETURN_IF_ERROR(CheckTokens(tokens));
  QKV_RETURN_IF_ERROR(CheckRoom(tokens.size()));
  has_logits_ = false;
  size_t read = 0;
  try {
    read = llama_state_seq_set_data(context_, state.data(), state.size(), 0);
  } catch (const std::exception&) {
    read = 0;
  }
  if (read != state.size()) {
    Clear();
    return {StatusCode::kInternal,
            "llama.cpp refused the restored state" + LlamaErrorSuffix() + "; the session is empty now"};
  }
  tokens_.assign(tokens.begin(), tokens.end());
  return {};
}

Status Session::Truncate(size_t tokens) {
  if (tokens >= tokens_.size()) return {};
  if (!llama_memory_seq_rm(llama_get_memory(context_), 0, static_cast<llama_pos>(tokens), -1)) {
    return {StatusCode::kInternal, "llama.cpp cannot remove tokens from the sequence"};
  }
  tokens_.resize(tokens);
  has_logits_ = false;
  return {};
}

void Session::Clear() {
  llama_memory_clear(llama_get_memory(context_), /*data=*/true);
  tokens_.clear();
  has_logits_ = false;
}

}  // namespace qkvshare
