// Rows that queries attend to before those of a KvView: of the cards that a delta card continues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "qkvshare/status.h"
#include "quant/half.h"
#include "quant/tile.h"

namespace qkvshare {

// Made a head at a time, so that they are never all in memory.
struct EarlierRows {
  size_t tokens = 0;
  // Writes the rows of one head, [tokens, dim] FP16: keys with the position at which the queries meet them. Called from
  // several threads.
  std::function<Status(size_t layer, Side side, uint32_t kv_head, Half* rows)> fill;
};

}  // namespace qkvshare
