// A card of everything but its rows, and of whoever fills its blocks: what quantizing rows and copying them share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "card/card_writer.h"
#include "qkvshare/status.h"
#include "quant/bit_plan.h"
#include "quant/block.h"
#include "quant/channel_profile.h"
#include "quant/kv_view.h"

namespace qkvshare {

// All is referenced but the shapes.
struct CardParts {
  size_t tokens = 0;               // rows of each layer and side
  std::vector<LayerShape> shapes;  // [layers]
  const BitPlan& plan;
  const KeyProfiles& profiles;
  const CardContent& content;
};

struct BlockPlace {
  size_t layer = 0;
  Side side = Side::kKeys;
  uint32_t kv_head = 0;
};

// Writes all layout.bytes of the block. Called by several threads at once.
using FillBlock =
    std::function<Status(const BlockPlace& place, const TokenOrder& order, const BlockLayout& layout, uint8_t* block)>;

// Checks all parts against each other and the format, then fills the blocks. kInvalidArgument, kUnsupported and
// kOutOfRange as PackCard; errors of `fill` name the layer.
Result<PackedCard> AssembleCard(const CardParts& card, int threads, const FillBlock& fill);

}  // namespace qkvshare
