#include "runtime/plain_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <system_error>
#include <vector>

#include "llama.h"
#include "runtime/backend.h"
#include "runtime/batch.h"
#include "runtime/context_params.h"

namespace qkvshare {
namespace {

// Bytes that a call of llama.cpp read or wrote; 0 where it failed, whether it says so or throws.
template <typename Call>
size_t BytesOf(const Call& call) {
  TakeLastLlamaError();  // of earlier calls
  try {
    return call();
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace

Result<std::unique_ptr<PlainContext>> PlainContext::Create(const Model& model, SessionOptions options) {
  options.card_tokens = 0;
  QKV_RETURN_IF_ERROR(CheckSessionOptions(options));
  QKV_RETURN_IF_ERROR(CheckCacheTypes(model, options));
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
  return std::unique_ptr<PlainContext>(new PlainContext(context, options.cancel));
}

PlainContext::~PlainContext() { llama_free(context_); }

Status PlainContext::Prefill(std::span<const int32_t> tokens, int sequence) {
  const size_t most = std::min(llama_n_batch(context_), llama_n_ubatch(context_));
  for (size_t done = 0; done < tokens.size();) {
    if (cancel_ != nullptr && cancel_->load(std::memory_order_relaxed)) return {StatusCode::kCancelled, "cancelled"};
    const std::span part = tokens.subspan(done, std::min(most, tokens.size() - done));
    const int64_t last = llama_memory_seq_pos_max(llama_get_memory(context_), sequence);  // -1: none
    const auto position = static_cast<size_t>(last + 1);
    Batch batch(part.size(), sequence);
    for (size_t i = 0; i < part.size(); ++i) batch.Add(part[i], position + i, /*logits=*/i + 1 == part.size());
    int32_t result = 0;
    try {
      result = llama_decode(context_, batch.get());
    } catch (const std::exception& e) {
      return {StatusCode::kInternal, fmt::format("llama.cpp failed to decode: {}", e.what())};
    }
    QKV_RETURN_IF_ERROR(DecodeStatus(result));
    done += part.size();
  }
  return {};
}

Status PlainContext::Truncate(size_t tokens) {
  if (llama_memory_seq_rm(llama_get_memory(context_), 0, static_cast<llama_pos>(tokens), -1)) return {};
  return {StatusCode::kInternal, "llama.cpp cannot remove tokens from the sequence"};
}

void PlainContext::ShareWith(int sequence) {
  llama_memory_seq_cp(llama_get_memory(context_), /*seq_id_src=*/0, sequence, /*p0=*/-1, /*p1=*/-1);
}

void PlainContext::Clear() { llama_memory_seq_rm(llama_get_memory(context_), 0, -1, -1); }

Status PlainContext::SetState(ByteSpan state) {
  const size_t read =
      BytesOf([&] { return llama_state_seq_set_data(context_, state.data(), state.size(), /*dest_seq_id=*/0); });
  if (read == state.size()) return {};
  Clear();
  return {StatusCode::kInternal, "llama.cpp refused the state" + LlamaErrorSuffix()};
}

Status PlainContext::SaveFile(const std::string& path, std::span<const int32_t> tokens) const {
  const size_t written = BytesOf(
      [&] { return llama_state_seq_save_file(context_, path.c_str(), /*seq_id=*/0, tokens.data(), tokens.size()); });
  // It does not look whether the end went to the disk when it closed the file.
  std::error_code error;
  if (written > 0 && std::filesystem::file_size(path, error) == written && !error) return {};
  return {StatusCode::kIo, "llama.cpp cannot write a state to " + path + LlamaErrorSuffix()};
}

Result<std::vector<int32_t>> PlainContext::LoadFile(const std::string& path) {
  std::vector<int32_t> tokens(cells());
  size_t count = 0;
  const size_t read = BytesOf([&] {
    return llama_state_seq_load_file(context_, path.c_str(), /*dest_seq_id=*/0, tokens.data(), tokens.size(), &count);
  });
  if (read > 0) {
    tokens.resize(count);
    return tokens;
  }
  Clear();
  return Status(StatusCode::kIo, "llama.cpp cannot take a state from " + path + LlamaErrorSuffix());
}

const float* PlainContext::logits() const {
  const bool empty = llama_memory_seq_pos_max(llama_get_memory(context_), 0) < 0;
  return empty ? nullptr : llama_get_logits_ith(context_, -1);
}

uint32_t PlainContext::cells() const { return llama_n_ctx(context_); }

}  // namespace qkvshare
