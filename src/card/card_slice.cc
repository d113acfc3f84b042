#include "card/card_slice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "card/card_copy.h"

namespace qkvshare {
namespace {

CardContent ContentOf(const CardRange& range) {
  CardContent content;
  const Card& card = *range.card;
  content.info = card.info();
  content.info.segments.clear();
  content.info.context.clear();
  AddRange(range, &content);
  content.identity = card.identity();
  content.hop = card.hop();
  content.exact_tokens = std::min(range.end, card.exact_tokens()) - std::min(range.first, card.exact_tokens());
  const uint32_t protected_from = std::max(card.tokens() - card.protected_tokens(), range.first);
  content.protected_tokens = range.end - std::min(protected_from, range.end);
  content.profile = card.profile();
  // There is no parent any more that would tell where the values are from.
  if (content.profile.kind == ProfileKind::kInherited) content.profile.kind = ProfileKind::kMeasured;
  const uint32_t start = card.first_token() + range.first;
  for (const Anchor& anchor : card.anchors()) {
    if (anchor.token < start || anchor.token >= start + range.tokens()) continue;
    content.anchors.push_back({anchor.token - start, anchor.weight});
  }
  for (size_t layer = 0; layer < card.layers(); ++layer) content.windows.push_back(card.window(layer));
  return content;
}

}  // namespace

Result<PackedCard> SliceCard(const Card& card, uint32_t first, uint32_t tokens, int threads) {
  if (tokens == 0 || first >= card.tokens() || tokens > card.tokens() - first) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} tokens from token {} on, of a card of {}", tokens, first, card.tokens()));
  }
  const CardRange range = {&card, first, first + tokens};
  const std::string policy = fmt::format("tokens {} to {} of card {}: {}", first, range.end - 1,
                                         ToHex(card.content_id()).substr(0, 12), card.plan().policy);
  return CopyRanges({&range, 1}, card, policy, ContentOf(range), threads);
}

}  // namespace qkvshare
