// The reference of rounding in a metric: Kernels::round_tile of the scalar set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/error_metric.h"
#include "quant/row_scale.h"

namespace qkvshare {

void RoundTileScalar(const ErrorMetric& metric, const float* x, size_t rows, int bits, uint8_t* codes, RowScale* scales,
                     float* costs);

}  // namespace qkvshare
