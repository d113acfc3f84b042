// What is known of the agents that come after: T(t), the paper's transferability. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/attention_window.h"
#include "quant/anchor.h"
#include "quant/kv_view.h"

namespace qkvshare {

// A run of tokens and how far away the agents are that will use it.
struct SegmentPrior {
  size_t first_token = 0;
  size_t tokens = 0;
  std::vector<uint32_t> distances{};  // of each of its readers, hops from the sender
  bool unread = false;                // nobody will use it; else, without distances, it is not known who will
};

struct Transferability {
  std::vector<SegmentPrior> segments{};
  std::vector<Anchor> anchors{};  // of earlier receivers, in any order; of several, one after the other
  // Queries of a receiver over the sender's cache, such as those of its instruction: a direct measurement of what it
  // will look at. Empty: there are none.
  AttentionWindow probe{};
  // What these queries see where it is more than the rows to pack: those, then more of the same layers. A weight is
  // then a share of all that its query looks at. Without tokens: the rows to pack alone.
  KvView probe_rows{};
};

// Feature `prior` (the paper's role prior of a segment). A token's value is the sum over the readers of its segment of
// 0.5^(distance - 1), and 0 where nobody reads it; segments of which it is not known get the mean of the others. Empty
// where no reader is known.
std::vector<double> SegmentPriorFeature(const std::vector<SegmentPrior>& segments, size_t tokens);

// Feature `anchors` (the paper's overlap with the anchors of earlier receivers): the anchors' weights, smoothed over
// two tokens to each side (1 2 3 2 1), since a receiver that looks again may look one token beside. Anchors past the
// last token are passed over. Empty where none is left.
std::vector<double> AnchorFeature(const std::vector<Anchor>& anchors, size_t tokens);

}  // namespace qkvshare
