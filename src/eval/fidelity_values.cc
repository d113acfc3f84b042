#include "eval/fidelity_values.h"

#include <fmt/format.h>

#include <cmath>

#include "eval/rounded.h"

namespace qkvshare {

Status AddPredictions(std::span<const Prediction> predictions, FidelityLine* line) {
  for (const Prediction& p : predictions) {
    if (!std::isfinite(p.kl) || !std::isfinite(p.log_probability)) {
      return {StatusCode::kNonFinite, fmt::format("arm {}, prompt {}, continuation {}: prediction {} is no number",
                                                  line->arm, line->prompt, line->continuation, line->kl.size())};
    }
    line->kl.push_back(Rounded(p.kl));
    line->same.push_back(p.same ? 1 : 0);
    line->logprob.push_back(Rounded(p.log_probability));
    line->ref_logprob.push_back(Rounded(p.reference_log_probability));
  }
  return {};
}

}  // namespace qkvshare
