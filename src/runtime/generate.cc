#include "runtime/generate.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/stopwatch.h"
#include "llama.h"

namespace qkvshare {
namespace {

struct SamplerDeleter {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using Sampler = std::unique_ptr<llama_sampler, SamplerDeleter>;

Sampler MakeSampler(const SamplingOptions& options) {
  Sampler chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  if (options.temp <= 0) {
    llama_sampler_chain_add(chain.get(), llama_sampler_init_greedy());
    return chain;
  }
  llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(options.top_k));
  llama_sampler_chain_add(chain.get(), llama_sampler_init_top_p(options.top_p, 1));
  llama_sampler_chain_add(chain.get(), llama_sampler_init_min_p(options.min_p, 1));
  llama_sampler_chain_add(chain.get(), llama_sampler_init_temp(options.temp));
  llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(options.seed));
  return chain;
}

}  // namespace

const char* StopReasonName(StopReason reason) {
  switch (reason) {
    case StopReason::kEndToken: return "end";
    case StopReason::kLength: return "length";
    case StopReason::kContext: return "context";
    case StopReason::kCancelled: return "cancelled";
  }
  return "unknown";
}

Result<Generation> Generate(Session* session, const GenerateOptions& options, int sequence) {
  if (session->logits(sequence) == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "generate: the last token has not been decoded, so there is nothing to continue");
  }
  const Sampler sampler = MakeSampler(options.sampling);
  Generation out;
  Stopwatch total;
  Stopwatch first;
  while (out.tokens.size() < options.predict) {
    const float* logits = session->logits(sequence);
    if (!std::all_of(logits, logits + session->model().vocab_size(), [](float x) { return std::isfinite(x); })) {
      return Status(StatusCode::kNonFinite,
                    "the model's logits are not finite; check the model file and the RoPE flags");
    }
    const int32_t token = llama_sampler_sample(sampler.get(), session->handle(), -1);
    if (out.tokens.empty()) out.first_token_us = first.LapUs();
    if (session->model().IsEndOfGeneration(token)) {
      out.stop = StopReason::kEndToken;
      out.end_token = token;
      break;
    }
    out.tokens.push_back(token);
    const std::string piece = session->model().Piece(token);
    out.text += piece;
    if (options.on_text) options.on_text(piece);
    if (out.tokens.size() == options.predict) break;
    if (!session->CheckRoom(session->tokens(sequence).size() + 1, sequence).ok()) {
      out.stop = StopReason::kContext;
      break;
    }
    const Status status = session->Prefill({&token, 1}, {}, sequence);
    if (status.code() == StatusCode::kCancelled) {
      out.stop = StopReason::kCancelled;
      break;
    }
    QKV_RETURN_IF_ERROR(status);
  }
  out.total_us = total.LapUs();
  return out;
}

Status DecodeRest(const Generation& generation, Session* session, int sequence) {
  if (generation.end_token >= 0) return session->Prefill({&generation.end_token, 1}, {}, sequence);
  if (generation.tokens.empty()) return {};
  return session->Prefill({&generation.tokens.back(), 1}, {}, sequence);
}

}  // namespace qkvshare
