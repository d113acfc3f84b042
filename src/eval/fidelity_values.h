// Values of a fidelity line, as they are kept: as text, with six digits.
#pragma once

#include <span>

#include "eval/fidelity.h"
#include "eval/fidelity_summary.h"
#include "qkvshare/status.h"

namespace qkvshare {

// Adds them to the line, which is named already. kNonFinite names it, and the prediction that is no number.
Status AddPredictions(std::span<const Prediction> predictions, FidelityLine* line);

}  // namespace qkvshare
