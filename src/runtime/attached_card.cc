#include "runtime/attached_card.h"

#include <fmt/format.h>

namespace qkvshare {
namespace {

PackedLayer LayerOf(const Card& card, size_t layer) {
  PackedLayer out;
  out.keys = card.layout(layer, Side::kKeys);
  out.values = card.layout(layer, Side::kValues);
  for (size_t head = 0; head < card.shape(layer).kv_heads; ++head) {
    out.key_blocks.push_back(card.block(layer, Side::kKeys, head).data());
    out.value_blocks.push_back(card.block(layer, Side::kValues, head).data());
    const ChannelProfile profile = card.key_profile(layer, head);
    for (const Half x : profile.mean) out.mean.push_back(HalfToFloat(x));
    for (const Half x : profile.scale) out.scale.push_back(HalfToFloat(x));
  }
  return out;
}

}  // namespace

Result<std::shared_ptr<const AttachedCard>> AttachedCard::Make(std::shared_ptr<const Card> card) {
  std::shared_ptr<AttachedCard> attached(new AttachedCard());
  for (size_t layer = 0; layer < card->layers(); ++layer) {
    attached->attention_.layers.push_back(LayerOf(*card, layer));
    const Status status = CheckRows(attached->attention_.layers.back());
    if (!status.ok()) return Status(status.code(), fmt::format("layer {}: {}", layer, status.message()));
  }
  for (const uint32_t token : card->order().token_at)
    attached->attention_.positions.push_back(card->positions()[token]);
  attached->attention_.blocks = MakeTokenBlocks(card->order().level_size);
  attached->card_ = std::move(card);
  return std::shared_ptr<const AttachedCard>(std::move(attached));
}

std::vector<CardPart> PartsOf(std::span<const PlacedCard> cards) {
  std::vector<CardPart> parts;
  for (const PlacedCard& placed : cards) parts.push_back(placed.part());
  return parts;
}

}  // namespace qkvshare
