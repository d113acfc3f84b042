// What llama.cpp's cache types do to a context's rows, without the rest of the context noticing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "qkvshare/status.h"
#include "quant/kv_view.h"
#include "runtime/cache_type.h"
#include "runtime/kv_state.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

// How a context with caches of these types keeps the rows of each layer. options: of any session of the model. Errors
// as Session::Create.
Result<std::vector<LayerFormat>> CacheFormats(const Model& model, SessionOptions options, CacheType keys,
                                              CacheType values);

// The state of a context (`layout`) that has the rows as caches of these formats would give them back: rotated where
// llama.cpp rotates, quantized by ggml, and rounded to FP16. Positions count from 0. kNonFinite names the token.
Result<std::vector<uint8_t>> RoundTripState(const KvView& rows, std::span<const LayerFormat> formats,
                                            const StateLayout& layout, int threads);

// The rows of `tokens` tokens in caches of these types, with kF16 FP16 rows.
struct CacheSize {
  size_t bytes = 0;
  double code_bits = 0;   // a channel, without what is shared by a block of values
  double total_bits = 0;  // of all bytes
};
CacheSize SizeInCache(std::span<const LayerShape> shapes, CacheType keys, CacheType values, size_t tokens);

}  // namespace qkvshare
