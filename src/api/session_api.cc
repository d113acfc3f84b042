// Sessions: prefill and generation.
#include <algorithm>
#include <cmath>

#include "api/api_support.h"
#include "runtime/generate.h"
#include "runtime/prompt.h"
#include "runtime/sender.h"

namespace api = qkvshare::api;
using qkvshare::Session;
using qkvshare::Status;
using qkvshare::StatusCode;

namespace {

// A cancellation holds for one call.
class CancelScope {
 public:
  explicit CancelScope(Session* session) : session_(session) {}
  ~CancelScope() { session_->ResetCancel(); }
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;

 private:
  Session* session_;
};

Status Create(const qkv_model* model, const qkv_session_options* given, qkv_session** session) {
  QKV_RETURN_IF_ERROR(api::CheckNotNull({{"model", model}, {"session", session}}));
  qkv_session_options options;
  qkv_session_options_default(&options, sizeof options);
  QKV_RETURN_IF_ERROR(api::ReadOptions(given, &options));
  if (options.batch == 0 || options.batch > 65536) return {StatusCode::kInvalidArgument, "batch: give 1 to 65536"};
  if (options.threads < 0 || options.threads > 512) return {StatusCode::kInvalidArgument, "threads: give 0 to 512"};
  const auto is_good = [](float rope) { return std::isfinite(rope) && rope >= 0; };
  if (!is_good(options.rope_freq_base) || !is_good(options.rope_freq_scale)) {
    return {StatusCode::kInvalidArgument, "rope_freq_base and rope_freq_scale: give 0 or more"};
  }
  qkvshare::SessionOptions create;
  create.context = options.context;
  create.batch = options.batch;
  create.threads = options.threads;
  create.rope_freq_base = options.rope_freq_base;
  create.rope_freq_scale = options.rope_freq_scale;
  QKV_RETURN_IF_ERROR(
      api::CheckNotNull({{"cache_type_k", options.cache_type_k}, {"cache_type_v", options.cache_type_v}}));
  QKV_ASSIGN_OR_RETURN(create.cache_type_k, qkvshare::CacheTypeFromName(options.cache_type_k));
  QKV_ASSIGN_OR_RETURN(create.cache_type_v, qkvshare::CacheTypeFromName(options.cache_type_v));
  create.flash_attention = options.flash_attention;
  create.fused = options.fused;
  create.card_tokens = options.card_tokens;
  auto handle = std::make_unique<qkv_session>();
  handle->model = model->model;
  QKV_ASSIGN_OR_RETURN(handle->session, Session::Create(*model->model, create));
  *session = handle.release();
  return {};
}

// From here on queries are kept, those of generated tokens too, or no longer.
Status KeepAttention(bool keep, qkv_session* handle) {
  keep = keep && handle->session->flash_attention();
  if (keep == handle->keeps_queries) return {};
  QKV_RETURN_IF_ERROR(handle->session->KeepQueries(keep ? qkvshare::kWindowTokens : 0, qkvshare::kWindowStride));
  handle->keeps_queries = keep;
  return {};
}

Status ReadPrefillOptions(const qkv_prefill_options* given, qkv_session* handle, qkvshare::PrefillOptions* prefill) {
  qkv_prefill_options options;
  qkv_prefill_options_default(&options, sizeof options);
  QKV_RETURN_IF_ERROR(api::ReadOptions(given, &options));
  QKV_RETURN_IF_ERROR(KeepAttention(options.keep_attention, handle));
  if (options.progress == nullptr) return {};
  prefill->progress = [options, session = handle->session.get()](size_t done, size_t total) {
    if (!options.progress(options.progress_data, done, total)) session->Cancel();
  };
  return {};
}

Status PrefillText(qkv_session* handle, const std::string& text, const qkv_prefill_options* options) {
  Session& session = *handle->session;
  qkvshare::PrefillOptions prefill;
  QKV_RETURN_IF_ERROR(ReadPrefillOptions(options, handle, &prefill));
  const qkvshare::JoinedPrompt joined = qkvshare::JoinPrompt(*handle->model, session.tokens(), text);
  if (joined.tokens.empty()) return {StatusCode::kInvalidArgument, "there are no tokens to prefill"};
  QKV_RETURN_IF_ERROR(session.CheckRoom(joined.tokens.size()));
  QKV_RETURN_IF_ERROR(session.Truncate(joined.cached));
  handle->restored = std::min(handle->restored, joined.cached);
  const CancelScope scope(&session);
  return session.Prefill(std::span(joined.tokens).subspan(joined.cached), prefill);
}

Status CheckSampling(const qkv_generate_options& options) {
  const auto is_share = [](float p) { return p >= 0 && p <= 1; };  // and no NaN
  if (!std::isfinite(options.temp)) return {StatusCode::kInvalidArgument, "temp: give a finite number"};
  if (is_share(options.top_p) && is_share(options.min_p)) return {};
  return {StatusCode::kInvalidArgument, "top_p and min_p: give 0 to 1"};
}

Status GenerateInto(qkv_session* handle, const qkv_generate_options* given, qkv_generation* generation, size_t size) {
  QKV_RETURN_IF_ERROR(api::CheckNotNull({{"session", handle}, {"generation", generation}}));
  if (size < sizeof(qkv_generation)) {  // what it owns would be lost
    return {StatusCode::kInvalidArgument, "generation_size: give sizeof(qkv_generation)"};
  }
  qkv_generate_options options;
  qkv_generate_options_default(&options, sizeof options);
  QKV_RETURN_IF_ERROR(api::ReadOptions(given, &options));
  QKV_RETURN_IF_ERROR(CheckSampling(options));
  Session* session = handle->session.get();
  qkvshare::GenerateOptions generate;
  generate.predict = options.predict;
  generate.sampling = {options.temp, options.top_k, options.top_p, options.min_p, options.seed};
  bool stopped = false;  // by the callback, which may be called for the last token that there is to be
  if (options.on_text != nullptr) {
    generate.on_text = [&](const std::string& piece) {
      if (options.on_text(options.text_data, piece.data(), piece.size())) return;
      stopped = true;
      session->Cancel();
    };
  }
  const CancelScope scope(session);
  QKV_ASSIGN_OR_RETURN(const qkvshare::Generation done, Generate(session, generate));
  api::Owned<char> text(done.text);
  api::Owned<int32_t> tokens(done.tokens);
  session->ResetCancel();
  Status rest = DecodeRest(done, session);
  const bool late = rest.code() == StatusCode::kCancelled;
  if (!rest.ok() && !late && rest.code() != StatusCode::kOutOfRange) return rest;  // a full context keeps what fits
  qkv_generation value{};
  text.Give(&value.text, &value.text_bytes);
  tokens.Give(&value.tokens, &value.token_count);
  value.stop = stopped || late ? QKV_STOP_CANCELLED : static_cast<qkv_stop>(done.stop);
  value.end_token = done.end_token;
  api::CopyOut(value, generation, size);
  return {};
}

}  // namespace

qkv_status qkv_session_options_default(qkv_session_options* options, size_t struct_size) {
  const qkvshare::SessionOptions defaults;
  qkv_session_options value{};
  value.context = defaults.context;
  value.batch = defaults.batch;
  value.threads = defaults.threads;
  value.rope_freq_base = defaults.rope_freq_base;
  value.rope_freq_scale = defaults.rope_freq_scale;
  value.cache_type_k = CacheTypeName(defaults.cache_type_k);
  value.cache_type_v = CacheTypeName(defaults.cache_type_v);
  value.flash_attention = defaults.flash_attention;
  value.fused = defaults.fused;
  value.card_tokens = defaults.card_tokens;
  return api::SetDefaults(value, options, struct_size);
}

qkv_status qkv_session_create(const qkv_model* model, const qkv_session_options* options, qkv_session** session,
                              qkv_error* error) {
  return api::Call(error, [&] { return Create(model, options, session); });
}

void qkv_session_free(qkv_session* session) { delete session; }

qkv_status qkv_session_get_info(const qkv_session* session, qkv_session_info* info, size_t info_size,
                                qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"session", session}, {"info", info}}));
    const Session& inner = *session->session;
    qkv_session_info value{};
    value.tokens = inner.tokens().size();
    value.restored_tokens = session->restored;
    value.context = inner.context();
    value.threads = inner.threads();
    value.cache_type_k = CacheTypeName(inner.cache_type_k());
    value.cache_type_v = CacheTypeName(inner.cache_type_v());
    value.flash_attention = inner.flash_attention();
    value.attached_tokens = inner.attached();
    value.fused = inner.fused().ok();
    value.fused_reason = inner.fused().message().c_str();
    api::CopyOut(value, info, info_size);
    return {};
  });
}

qkv_status qkv_session_get_tokens(const qkv_session* session, int32_t** tokens, size_t* token_count, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"session", session}, {"tokens", tokens}, {"token_count", token_count}}));
    api::Owned<int32_t>(session->session->tokens()).Give(tokens, token_count);
    return {};
  });
}

qkv_status qkv_prefill_options_default(qkv_prefill_options* options, size_t struct_size) {
  qkv_prefill_options value{};
  value.keep_attention = true;
  return api::SetDefaults(value, options, struct_size);
}

qkv_status qkv_session_prefill(qkv_session* session, const int32_t* tokens, size_t token_count,
                               const qkv_prefill_options* options, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"session", session}, {"tokens", tokens}}));
    qkvshare::PrefillOptions prefill;
    QKV_RETURN_IF_ERROR(ReadPrefillOptions(options, session, &prefill));
    const CancelScope scope(session->session.get());
    return session->session->Prefill({tokens, token_count}, prefill);
  });
}

qkv_status qkv_session_prefill_text(qkv_session* session, const char* text, size_t text_bytes,
                                    const qkv_prefill_options* options, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"session", session}, {"text", text}}));
    QKV_ASSIGN_OR_RETURN(const std::string copy, api::Utf8(text, text_bytes));
    return PrefillText(session, copy, options);
  });
}

qkv_status qkv_session_truncate(qkv_session* session, size_t token_count, qkv_error* error) {
  return api::Call(error, [&]() -> Status {
    QKV_RETURN_IF_ERROR(api::CheckNotNull({{"session", session}}));
    if (token_count > session->session->tokens().size()) {
      return {StatusCode::kInvalidArgument, "token_count: the session holds fewer tokens"};
    }
    QKV_RETURN_IF_ERROR(session->session->Truncate(token_count));
    session->restored = std::min(session->restored, token_count);
    return {};
  });
}

void qkv_session_cancel(qkv_session* session) {
  if (session != nullptr) session->session->Cancel();
}

qkv_status qkv_generate_options_default(qkv_generate_options* options, size_t struct_size) {
  const qkvshare::GenerateOptions defaults;
  const qkvshare::SamplingOptions& sampling = defaults.sampling;
  return api::SetDefaults(qkv_generate_options{0, defaults.predict, sampling.temp, sampling.top_k, sampling.top_p,
                                               sampling.min_p, sampling.seed, nullptr, nullptr},
                          options, struct_size);
}

qkv_status qkv_session_generate(qkv_session* session, const qkv_generate_options* options, qkv_generation* generation,
                                size_t generation_size, qkv_error* error) {
  return api::Call(error, [&] { return GenerateInto(session, options, generation, generation_size); });
}
