// A model with the same weights as floats: for measuring, since products with quantized weights round activations too.
#pragma once

#include <string>

#include "qkvshare/status.h"

namespace qkvshare {

enum class FloatType { kF32, kF16 };

// Writes the model of a GGUF file with all its weights as floats; what is floats already is converted. The file is
// whole or not there, and replaces a GGUF file only. kNotFound, kIo, kCorrupt (no model that llama.cpp reads),
// kInvalidArgument (something else is at `output`, or it is the input).
Status DequantizeModel(const std::string& input, const std::string& output, FloatType type, int threads);

}  // namespace qkvshare
