// Values of a fidelity line, as they are kept.
#pragma once

#include <span>

#include "eval/fidelity.h"
#include "eval/fidelity_summary.h"
#include "qkvshare/status.h"

namespace qkvshare {

// Puts them into the line, which is named already; the last `answer_tokens` of them, or all if there are fewer, predict
// the answer. kNonFinite names the line, and the prediction that is no number.
Status SetPredictions(std::span<const Prediction> predictions, size_t answer_tokens, FidelityLine* line);

}  // namespace qkvshare
