// Making a session: its context, and what there is to find out about it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/bytes.h"
#include "llama.h"
#include "runtime/backend.h"
#include "runtime/context_params.h"
#include "runtime/session.h"

namespace qkvshare {
namespace {

int DefaultThreads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

uint32_t ContextOf(const Model& model, const SessionOptions& options) {
  return options.context > 0 ? options.context : model.training_context();
}

// Rows of the cache. LongRoPE takes its factors by the size of the context, so there it must be the whole one.
uint32_t CellsOf(const Model& model, const SessionOptions& options) {
  const uint32_t context = ContextOf(model, options);
  return model.rope_depends_on_context() ? context : context - std::min(options.card_tokens, context);
}

// All that decides what a context of this model is like (CardContext::Bind).
std::string KindOf(const Model& model, const SessionOptions& options) {
  const uint32_t context = model.rope_depends_on_context() ? ContextOf(model, options) : 0;
  const char* forced = std::getenv("QKV_FORCE_ISA");  // NOLINT(concurrency-mt-unsafe): nothing here sets it
  return fmt::format("{} {} {} {} {} {} {} {} {}", CacheTypeName(options.cache_type_k),
                     CacheTypeName(options.cache_type_v), options.flash_attention, options.rope_freq_base,
                     options.rope_freq_scale, options.sequences, options.fused, context,
                     forced == nullptr ? "" : forced);
}

}  // namespace

llama_context_params ContextParamsOf(const Model& model, const SessionOptions& options, const SequenceIds& ids) {
  llama_context_params params = llama_context_default_params();
  params.n_ubatch = std::max(options.batch, 1u);
  params.n_threads = params.n_threads_batch = options.threads > 0 ? options.threads : DefaultThreads();
  params.n_seq_max = static_cast<uint32_t>(ids.count());
  // llama.cpp aborts on a context or a batch of fewer tokens than there are sequences.
  params.n_ctx = std::max(CellsOf(model, options), params.n_seq_max);
  params.n_batch = std::max(params.n_ubatch, params.n_seq_max);
  params.rope_freq_base = options.rope_freq_base;
  params.rope_freq_scale = options.rope_freq_scale;
  params.flash_attn_type = options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = static_cast<ggml_type>(GgmlTypeOf(options.cache_type_k));
  params.type_v = static_cast<ggml_type>(GgmlTypeOf(options.cache_type_v));
  params.kv_unified = true;
  params.swa_full = true;
  return params;
}

uint32_t ContextFor(const Model& model, size_t tokens) {
  return static_cast<uint32_t>(std::min<size_t>(AlignUp(tokens + 1, 256), model.training_context()));
}

Status CheckSessionOptions(const SessionOptions& options) {
  if (!options.flash_attention && IsQuantized(options.cache_type_v)) {
    return {StatusCode::kInvalidArgument,
            fmt::format("a V cache of type {} needs flash attention; use -fa on, or -ctv f16 or bf16",
                        CacheTypeName(options.cache_type_v))};
  }
  if (options.sequences < 1 || options.sequences > kMaxSequences) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} sequences: choose from 1 to {}", options.sequences, kMaxSequences)};
  }
  return {};
}

// llama.cpp aborts on some of what this refuses.
Status CheckCacheTypes(const Model& model, const SessionOptions& options) {
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const CacheType type = side == Side::kKeys ? options.cache_type_k : options.cache_type_v;
    const uint32_t dim = model.head_size(side);
    if (dim % BlockValues(type) == 0) continue;
    return {StatusCode::kUnsupported, fmt::format("cache type {} takes heads of a multiple of {} values, but the "
                                                  "model's have {}; use f16 or bf16",
                                                  CacheTypeName(type), BlockValues(type), dim)};
  }
  return {};
}

Session::Session(const Model& model, const SessionOptions& options)
    : model_(model),
      options_(options),
      ids_{options.sequences, llama_model_n_swa(model.handle()) > 0},
      tokens_(static_cast<size_t>(options.sequences)),
      windows_(static_cast<size_t>(options.sequences)),
      logits_rows_(static_cast<size_t>(options.sequences), -1) {}

Result<std::unique_ptr<Session>> Session::Create(const Model& model, const SessionOptions& options) {
  QKV_RETURN_IF_ERROR(CheckSessionOptions(options));
  QKV_RETURN_IF_ERROR(CheckCacheTypes(model, options));
  std::unique_ptr<Session> session(new Session(model, options));
  TakeLastLlamaError();  // of earlier calls
  try {
    QKV_ASSIGN_OR_RETURN(session->card_context_, CardContext::Create(model, options.fused));
    QKV_RETURN_IF_ERROR(session->MakeContext());
    QKV_RETURN_IF_ERROR(session->card_context_->Bind(session->context_, KindOf(model, options)));
    if (!session->fused().ok() && options.card_tokens > 0) {
      // Cards will have to be restored: with memory for their tokens after all.
      session.reset();
      SessionOptions whole = options;
      whole.card_tokens = 0;
      return Create(model, whole);
    }
  } catch (const std::exception& e) {
    return Status(StatusCode::kInternal, fmt::format("llama.cpp failed to make a context: {}", e.what()));
  }
  return session;
}

Session::~Session() {
  if (context_ != nullptr) llama_free(context_);
}

Status Session::MakeContext() {
  llama_context_params params = ContextParamsOf(model_, options_, ids_);
  card_context_->SetCallback(&params);
  params.abort_callback = [](void* data) { return static_cast<Session*>(data)->IsCancelled(); };
  params.abort_callback_data = this;
  context_ = llama_init_from_model(model_.handle(), params);
  if (context_ == nullptr) {
    return {StatusCode::kOutOfRange, fmt::format("llama.cpp cannot make a context of {} tokens{}; a smaller -c takes "
                                                 "less memory",
                                                 params.n_ctx, LlamaErrorSuffix())};
  }
  threads_ = params.n_threads;
  // llama.cpp rounds the context up, but limits a decode call by what was asked for.
  cells_ = std::min(CellsOf(model_, options_), llama_n_ctx(context_));
  context_tokens_ = std::min(ContextOf(model_, options_), cells_ + options_.card_tokens);
  batch_ = std::min(llama_n_batch(context_), llama_n_ubatch(context_));
  return {};
}

}  // namespace qkvshare
