#include "runtime/generate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

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

// How much of the text's end may be the beginning of a stop text.
size_t OpenEnd(const std::string& text, const std::vector<std::string>& stop) {
  size_t longest = 0;
  for (const std::string& ending : stop) {
    for (size_t n = std::min(ending.size() - 1, text.size()); n > longest; --n) {
      if (text.ends_with(std::string_view(ending).substr(0, n))) longest = n;
    }
  }
  return longest;
}

// One answer while it is generated: its sampler, what there is of it, and whether it goes on.
class Answer {
 public:
  Answer(const Session& session, const GenerateOptions& options)
      : session_(session), options_(options), sampler_(MakeSampler(options.sampling)) {}

  static Status Check(const GenerateOptions& options) {
    const auto empty = [](const std::string& text) { return text.empty(); };
    if (std::none_of(options.stop.begin(), options.stop.end(), empty)) return {};
    return {StatusCode::kInvalidArgument, "a stop text is empty; leave it out"};
  }

  // Samples the next token, from the logits of the last decode call. Returns whether another one is wanted.
  Result<bool> Next(const float* logits) {
    Stopwatch watch;
    if (!std::all_of(logits, logits + session_.model().vocab_size(), [](float x) { return std::isfinite(x); })) {
      return Status(StatusCode::kNonFinite,
                    "the model's logits are not finite; check the model file and the RoPE flags");
    }
    const int32_t token = llama_sampler_sample(sampler_.get(), session_.handle(), -1);
    if (out_.tokens.empty()) out_.first_token_us = watch.LapUs();
    if (session_.model().IsEndOfGeneration(token)) {
      out_.stop = StopReason::kEndToken;
      out_.end_token = token;
      return false;
    }
    out_.tokens.push_back(token);
    if (AddText(session_.model().Piece(token))) {
      out_.stop = StopReason::kStopText;
      return false;
    }
    return out_.tokens.size() < options_.predict;
  }

  int32_t token() const { return out_.tokens.back(); }
  void StopFor(StopReason reason) { out_.stop = reason; }

  Generation Finish() {
    if (shown_ < out_.text.size()) Show(out_.text.size());
    out_.total_us = total_.LapUs();
    return std::move(out_);
  }

 private:
  // Returns whether the text ends here.
  bool AddText(const std::string& piece) {
    const size_t before = out_.text.size();
    out_.text += piece;
    size_t end = std::string::npos;
    for (const std::string& ending : options_.stop)
      end = std::min(end, out_.text.find(ending, before - std::min(before, ending.size() - 1)));
    const bool ends = end != std::string::npos;
    if (ends) {
      out_.cut = out_.text.substr(end);
      out_.text.resize(end);
    }
    Show(ends ? end : out_.text.size() - OpenEnd(out_.text, options_.stop));
    return ends;
  }

  void Show(size_t end) {
    if (options_.on_text) options_.on_text(out_.text.substr(shown_, end - shown_));
    shown_ = end;
  }

  const Session& session_;
  const GenerateOptions& options_;
  Sampler sampler_;
  Stopwatch total_;
  Generation out_;
  size_t shown_ = 0;  // bytes of the text
};

}  // namespace

const char* StopReasonName(StopReason reason) {
  switch (reason) {
    case StopReason::kEndToken: return "end";
    case StopReason::kLength: return "length";
    case StopReason::kContext: return "context";
    case StopReason::kCancelled: return "cancelled";
    case StopReason::kStopText: return "stop";
  }
  return "unknown";
}

Result<Generation> Generate(Session* session, const GenerateOptions& options, int sequence) {
  if (session->logits(sequence) == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "generate: the last token has not been decoded, so there is nothing to continue");
  }
  QKV_RETURN_IF_ERROR(Answer::Check(options));
  Answer answer(*session, options);
  size_t decoded = 0;
  for (bool wanted = options.predict > 0; wanted;) {
    QKV_ASSIGN_OR_RETURN(wanted, answer.Next(session->logits(sequence)));
    if (!wanted) break;
    if (!session->CheckRoom(session->tokens(sequence).size() + 1, sequence).ok()) {
      answer.StopFor(StopReason::kContext);
      break;
    }
    const int32_t token = answer.token();
    PrefillOptions prefill;
    prefill.window = options.window != nullptr && decoded++ % options.window_stride == 0 ? 1 : 0;
    const Status status = session->Prefill({&token, 1}, prefill, sequence);
    if (status.code() == StatusCode::kCancelled) {
      answer.StopFor(StopReason::kCancelled);
      break;
    }
    QKV_RETURN_IF_ERROR(status);
    if (prefill.window > 0) AppendWindow(session->window(sequence), options.window);
  }
  return answer.Finish();
}

Status DecodeRest(const Generation& generation, Session* session, int sequence) {
  if (generation.end_token >= 0) return session->Prefill({&generation.end_token, 1}, {}, sequence);
  if (generation.tokens.empty()) return {};
  return session->Prefill({&generation.tokens.back(), 1}, {}, sequence);
}

}  // namespace qkvshare
