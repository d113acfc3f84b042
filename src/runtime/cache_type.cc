#include "runtime/cache_type.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "ggml.h"
#include "quant/kernels.h"

namespace qkvshare {
namespace {

constexpr CacheType kCacheTypes[] = {CacheType::kF16, CacheType::kBF16, CacheType::kQ8_0, CacheType::kQ4_0};

ggml_type Ggml(CacheType type) {
  switch (type) {
    case CacheType::kF16: return GGML_TYPE_F16;
    case CacheType::kBF16: return GGML_TYPE_BF16;
    case CacheType::kQ8_0: return GGML_TYPE_Q8_0;
    case CacheType::kQ4_0: return GGML_TYPE_Q4_0;
  }
  return GGML_TYPE_F16;
}

Status Unknown(StatusCode code, const char* name) {
  std::string choices;
  for (const CacheType type : kCacheTypes) choices += (choices.empty() ? "" : ", ") + std::string(CacheTypeName(type));
  return {code, fmt::format("unknown cache type {}: choose from {}", name, choices)};
}

}  // namespace

const char* CacheTypeName(CacheType type) { return ggml_type_name(Ggml(type)); }

Result<CacheType> CacheTypeFromName(const std::string& name) {
  for (const CacheType type : kCacheTypes) {
    if (name == CacheTypeName(type)) return type;
  }
  return Unknown(StatusCode::kInvalidArgument, name.c_str());
}

Result<CacheType> CacheTypeFromGgml(int32_t number) {
  for (const CacheType type : kCacheTypes) {
    if (number == GgmlTypeOf(type)) return type;
  }
  return Unknown(StatusCode::kUnsupported, ggml_type_name(static_cast<ggml_type>(number)));
}

bool IsQuantized(CacheType type) { return ggml_is_quantized(Ggml(type)); }

size_t BlockValues(CacheType type) { return static_cast<size_t>(ggml_blck_size(Ggml(type))); }

int32_t GgmlTypeOf(CacheType type) { return Ggml(type); }

size_t CacheRowBytes(CacheType type, size_t values) {
  return ggml_type_size(Ggml(type)) * (values / BlockValues(type));
}

void RotateBlocks(uint32_t size, float* x, size_t count) {
  if (size > 0) ScalarKernels().rotate(x, count, size);
}

Status DecodeRows(const RowFormat& format, const uint8_t* in, size_t rows, size_t values, Half* out) {
  const size_t row_bytes = CacheRowBytes(format.type, values);
  if (format.plain()) {
    std::memcpy(out, in, rows * row_bytes);
    return {};
  }
  const ggml_to_float_t to_float = ggml_get_type_traits(Ggml(format.type))->to_float;
  std::vector<float> row(values);
  for (size_t r = 0; r < rows; ++r) {
    to_float(in + r * row_bytes, row.data(), static_cast<int64_t>(values));
    RotateBlocks(format.rotation, row.data(), values);
    for (size_t i = 0; i < values; ++i) {
      if (!(std::fabs(row[i]) <= kHalfMax)) {  // NaN too
        return {StatusCode::kNonFinite,
                fmt::format("token {}: a value of {} is out of the range of FP16 (+-{})", r, row[i], kHalfMax)};
      }
      out[r * values + i] = FloatToHalf(row[i]);
    }
  }
  return {};
}

void EncodeRows(const RowFormat& format, const Half* in, size_t rows, size_t values, uint8_t* out) {
  const size_t row_bytes = CacheRowBytes(format.type, values);
  if (format.plain()) {
    std::memcpy(out, in, rows * row_bytes);
    return;
  }
  std::vector<float> row(values);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < values; ++i) row[i] = HalfToFloat(in[r * values + i]);
    RotateBlocks(format.rotation, row.data(), values);
    ggml_quantize_chunk(Ggml(format.type), row.data(), out + r * row_bytes, 0, 1, static_cast<int64_t>(values),
                        nullptr);
  }
}

}  // namespace qkvshare
