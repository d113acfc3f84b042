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

// llama_sampler_sample, from logits that are not the last ones of the context.
int32_t Sample(llama_sampler* sampler, const float* logits, std::vector<llama_token_data>* scratch) {
  for (size_t i = 0; i < scratch->size(); ++i) (*scratch)[i] = {static_cast<llama_token>(i), logits[i], 0.0f};
  llama_token_data_array all{scratch->data(), scratch->size(), /*selected=*/-1, /*sorted=*/false};
  llama_sampler_apply(sampler, &all);
  const llama_token token = all.data[all.selected].id;
  llama_sampler_accept(sampler, token);
  return token;
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

// Where the line break is that ends the marked line; npos where it has not come.
size_t LineEnd(const std::string& text, const std::string& marker) {
  const size_t at = marker.empty() ? std::string::npos : text.find(marker);
  if (at == std::string::npos) return at;
  const size_t value = text.find_first_not_of(" \t\r\n", at + marker.size());
  return value == std::string::npos ? value : text.find('\n', value);
}

// One answer while it is generated: its sampler, what there is of it, and whether it goes on.
class Answer {
 public:
  Answer(const Model& model, const SequenceOptions& wanted)
      : model_(model),
        options_(wanted.options),
        sequence_(wanted.sequence),
        sampler_(MakeSampler(options_.sampling)),
        goes_on_(options_.predict > 0) {}

  int sequence() const { return sequence_; }
  // Whether a token is wanted.
  bool goes_on() const { return goes_on_; }
  // The one that was sampled last, to be decoded before the next.
  SequenceTokens last() const { return {sequence_, {&out_.tokens.back(), 1}}; }

  // Samples the next token. scratch: as many as the model has tokens.
  Status Next(const float* logits, std::vector<llama_token_data>* scratch) {
    Stopwatch watch;
    if (!std::all_of(logits, logits + scratch->size(), [](float x) { return std::isfinite(x); })) {
      return Status(StatusCode::kNonFinite,
                    "the model's logits are not finite; check the model file and the RoPE flags");
    }
    const int32_t token = Sample(sampler_.get(), logits, scratch);
    if (out_.tokens.empty()) out_.first_token_us = watch.LapUs();
    if (model_.IsEndOfGeneration(token)) {
      out_.end_token = token;
      Stop(StopReason::kEndToken);
      return {};
    }
    out_.tokens.push_back(token);
    if (AddText(model_.Piece(token))) {
      Stop(StopReason::kStopText);
    } else if (out_.tokens.size() == options_.predict) {
      Stop(StopReason::kLength);
    }
    return {};
  }

  void Stop(StopReason reason) {
    out_.stop = reason;
    goes_on_ = false;
    if (shown_ < out_.text.size()) Show(out_.text.size());
    out_.total_us = total_.LapUs();
  }
  Generation Take() { return std::move(out_); }

 private:
  // Returns whether the text ends here.
  bool AddText(const std::string& piece) {
    const size_t before = out_.text.size();
    out_.text += piece;
    size_t end = std::string::npos;
    for (const std::string& ending : options_.stop)
      end = std::min(end, out_.text.find(ending, before - std::min(before, ending.size() - 1)));
    end = std::min(end, LineEnd(out_.text, options_.stop_line));
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

  const Model& model_;
  const GenerateOptions& options_;
  const int sequence_;
  Sampler sampler_;
  Stopwatch total_;
  Generation out_;
  size_t shown_ = 0;  // bytes of the text
  bool goes_on_;
};

Status CheckWanted(const Session& session, std::span<const SequenceOptions> wanted) {
  std::vector<SequenceTokens> parts;
  const int32_t any = 0;
  for (const SequenceOptions& one : wanted) {
    QKV_RETURN_IF_ERROR(session.CheckSequence(one.sequence));
    if (session.logits(one.sequence) == nullptr) {
      return {StatusCode::kInvalidArgument,
              "generate: the last token has not been decoded, so there is nothing to continue"};
    }
    const auto empty = [](const std::string& text) { return text.empty(); };
    if (std::any_of(one.options.stop.begin(), one.options.stop.end(), empty))
      return {StatusCode::kInvalidArgument, "a stop text is empty; leave it out"};
    parts.push_back({one.sequence, {&any, 1}});
  }
  return wanted.empty() ? Status() : session.CheckTogether(parts);
}

// The last token of each answer that goes on; those without room for it end.
std::vector<SequenceTokens> NextCall(const Session& session, std::vector<Answer>* answers) {
  std::vector<SequenceTokens> parts;
  for (Answer& answer : *answers) {
    if (!answer.goes_on()) continue;
    parts.push_back(answer.last());
    if (session.CheckRoomFor(parts).ok()) continue;
    parts.pop_back();
    answer.Stop(StopReason::kContext);
  }
  return parts;
}

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

std::span<const int32_t> Generation::rest() const {
  if (end_token >= 0) return {&end_token, 1};
  return std::span(tokens).last(tokens.empty() ? 0 : 1);
}

Result<std::vector<Generation>> GenerateMany(Session* session, std::span<const SequenceOptions> wanted) {
  QKV_RETURN_IF_ERROR(CheckWanted(*session, wanted));
  std::vector<Answer> answers;
  answers.reserve(wanted.size());
  std::vector<llama_token_data> scratch(static_cast<size_t>(session->model().vocab_size()));
  for (const SequenceOptions& one : wanted) answers.emplace_back(session->model(), one);
  while (true) {
    for (Answer& answer : answers) {
      if (answer.goes_on()) QKV_RETURN_IF_ERROR(answer.Next(session->logits(answer.sequence()), &scratch));
    }
    const std::vector<SequenceTokens> parts = NextCall(*session, &answers);
    if (parts.empty()) break;
    const Status status = session->DecodeTogether(parts);
    if (status.code() == StatusCode::kCancelled) {
      for (Answer& answer : answers) {
        if (answer.goes_on()) answer.Stop(StopReason::kCancelled);
      }
      break;
    }
    QKV_RETURN_IF_ERROR(status);
  }
  std::vector<Generation> generations;
  generations.reserve(answers.size());
  for (Answer& answer : answers) generations.push_back(answer.Take());
  return generations;
}

Result<Generation> Generate(Session* session, const GenerateOptions& options, int sequence) {
  const SequenceOptions wanted{sequence, options};
  QKV_ASSIGN_OR_RETURN(std::vector<Generation> generations, GenerateMany(session, {&wanted, 1}));
  return std::move(generations.front());
}

Status DecodeRest(const Generation& generation, Session* session, int sequence) {
  return generation.rest().empty() ? Status() : session->Prefill(generation.rest(), {}, sequence);
}

}  // namespace qkvshare
