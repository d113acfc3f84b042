// Where in a layer's heads llama.cpp's graph applies RoPE.
#pragma once

#include <span>

#include "qkvshare/status.h"
#include "runtime/rope.h"

namespace qkvshare {

// The RoPE of a layer's queries and keys, read backwards from its attention; dims 0 where it has none. Where the cache
// keeps keys in a rotated form (see RowFormat), it is that of the keys before this.
// queries: what goes into attention, [dim, ...]; keys, values: the rows that the layer stores, keys as whole heads of
// dim values; ropes: every GGML_OP_ROPE node since the last layer's attention.
// kUnsupported where one of these cannot be accounted for, where queries and keys are not turned alike or values are
// turned too, and as ReadRope.
Result<LayerRope> FindRope(const ggml_tensor* queries, const ggml_tensor* keys, const ggml_tensor* values,
                           std::span<const ggml_tensor* const> ropes);

}  // namespace qkvshare
