#include "eval/fidelity_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/rounded.h"

namespace qkvshare {
namespace {

constexpr int kKlDigits = 4;  // there are many of them

}  // namespace

Status SetPredictions(std::span<const Prediction> predictions, size_t answer_tokens, FidelityLine* line) {
  line->answer_tokens = std::min(answer_tokens, predictions.size());
  double answer = 0, reference = 0;
  for (size_t i = 0; i < predictions.size(); ++i) {
    const Prediction& p = predictions[i];
    if (!std::isfinite(p.kl) || !std::isfinite(p.log_probability)) {
      return {StatusCode::kNonFinite, fmt::format("arm {}, prompt {}, continuation {}: prediction {} is no number",
                                                  line->arm, line->prompt, line->continuation, i)};
    }
    line->kl.push_back(Rounded(p.kl, kKlDigits));
    if (!p.same) line->other.push_back(i);
    if (i + line->answer_tokens < predictions.size()) continue;
    answer += p.log_probability;
    reference += p.reference_log_probability;
  }
  line->answer_logprob = Rounded(answer);
  line->ref_answer_logprob = Rounded(reference);
  return {};
}

}  // namespace qkvshare
