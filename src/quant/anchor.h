// Anchors: a compact sketch of what an agent attended to, for those who allocate bits after it.
#pragma once

#include <cstdint>

namespace qkvshare {

struct Anchor {
  uint32_t token = 0;  // index in the whole context, the tokens of parents included
  float weight = 0;    // share of the attention that it got, in (0, 1]

  friend bool operator==(const Anchor&, const Anchor&) = default;
};

}  // namespace qkvshare
