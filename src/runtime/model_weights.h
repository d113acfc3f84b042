// What a model's weights are stored as.
#pragma once

#include <string>

#include "runtime/model.h"

namespace qkvshare {

// llama.cpp's words for it: "llama 256M all F32", "qwen2 1B Q4_K - Medium".
std::string DescribeWeights(const Model& model);

// Whether its products are exact enough to see what one token's error does: with quantized weights llama.cpp rounds
// activations to 8 bits, which changes every distribution by more.
bool HasFloatWeights(const Model& model);

}  // namespace qkvshare
