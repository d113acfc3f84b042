#include "runtime/plain_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "llama.h"
#include "runtime/backend.h"
#include "runtime/context_params.h"

namespace qkvshare {

Result<std::unique_ptr<PlainContext>> PlainContext::Create(const Model& model, SessionOptions options) {
  options.card_tokens = 0;
  options.sequences = 1;
  QKV_RETURN_IF_ERROR(CheckSessionOptions(options));
  const SequenceIds ids{options.sequences, llama_model_n_swa(model.handle()) > 0};
  llama_context* context = nullptr;
  TakeLastLlamaError();  // of earlier calls
  try {
    context = llama_init_from_model(model.handle(), ContextParamsOf(model, options, ids));
  } catch (const std::exception& e) {
    return Status(StatusCode::kInternal, fmt::format("llama.cpp failed to make a context: {}", e.what()));
  }
  if (context == nullptr)
    return Status(StatusCode::kOutOfRange, "llama.cpp cannot make a context" + LlamaErrorSuffix());
  return std::unique_ptr<PlainContext>(new PlainContext(context));
}

PlainContext::~PlainContext() { llama_free(context_); }

Status PlainContext::Prefill(std::span<const int32_t> tokens) {
  std::vector<llama_token> call;
  const size_t batch = std::min(llama_n_batch(context_), llama_n_ubatch(context_));
  for (size_t done = 0; done < tokens.size(); done += call.size()) {
    const std::span part = tokens.subspan(done, std::min(batch, tokens.size() - done));
    call.assign(part.begin(), part.end());
    int32_t result = 0;
    try {
      result = llama_decode(context_, llama_batch_get_one(call.data(), static_cast<int32_t>(call.size())));
    } catch (const std::exception& e) {
      return {StatusCode::kInternal, fmt::format("llama.cpp failed to decode: {}", e.what())};
    }
    QKV_RETURN_IF_ERROR(DecodeStatus(result));
  }
  return {};
}

Status PlainContext::Truncate(size_t tokens) {
  if (llama_memory_seq_rm(llama_get_memory(context_), 0, static_cast<llama_pos>(tokens), -1)) return {};
  return {StatusCode::kInternal, "llama.cpp cannot remove tokens from the sequence"};
}

const float* PlainContext::logits() const {
  const bool empty = llama_memory_seq_pos_max(llama_get_memory(context_), 0) < 0;
  return empty ? nullptr : llama_get_logits_ith(context_, -1);
}

uint32_t PlainContext::cells() const { return llama_n_ctx(context_); }

}  // namespace qkvshare
