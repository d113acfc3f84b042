// Types of a context's cache, and the way from its rows to FP16 and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "qkvshare/status.h"
#include "quant/half.h"

namespace qkvshare {

enum class CacheType { kF16, kBF16, kQ8_0, kQ4_0 };

// Names as llama.cpp's: "f16", "bf16", "q8_0", "q4_0".
const char* CacheTypeName(CacheType type);
// kInvalidArgument names the choices.
Result<CacheType> CacheTypeFromName(const std::string& name);

bool IsQuantized(CacheType type);
// Values that are quantized together: a head's size must be a multiple.
size_t BlockValues(CacheType type);
// ggml's number of the type, as states and tensors have it.
int32_t GgmlTypeOf(CacheType type);
// kUnsupported names the choices.
Result<CacheType> CacheTypeFromGgml(int32_t type);

// What a row of one layer and side is in the cache.
struct RowFormat {
  CacheType type = CacheType::kF16;
  // llama.cpp rotates what goes into quantized caches: the row is cut into blocks of this many values (a power of two,
  // at least 8), and each is multiplied by the orthonormal Hadamard matrix, which is its own inverse. 0: it is not
  // rotated.
  uint32_t rotation = 0;

  bool plain() const { return type == CacheType::kF16 && rotation == 0; }
  friend bool operator==(const RowFormat&, const RowFormat&) = default;
};

// Bytes of a row of this many values, a multiple of BlockValues.
size_t CacheRowBytes(CacheType type, size_t values);

// Multiplies each block of `size` values (RowFormat::rotation; 0: none) of x [count, a multiple] by the orthonormal
// Hadamard matrix.
void RotateBlocks(uint32_t size, float* x, size_t count);

// in: [rows] rows of `values` values as the cache has them. out: [rows, values] FP16. kNonFinite names the first row
// (as a token) with a value that is too large for FP16, or no number.
Status DecodeRows(const RowFormat& format, const uint8_t* in, size_t rows, size_t values, Half* out);
// The other way, by ggml's own quantization.
void EncodeRows(const RowFormat& format, const Half* in, size_t rows, size_t values, uint8_t* out);

}  // namespace qkvshare
