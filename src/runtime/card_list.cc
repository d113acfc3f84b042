#include "runtime/card_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace qkvshare {
namespace {

std::string Start(const Digest& digest) { return ToHex(digest).substr(0, 12); }

Status WithoutParent(const Card& delta) {
  return {StatusCode::kMismatch,
          fmt::format("card {} holds tokens {} and on of a context and continues card {}: give that card before it",
                      Start(delta.content_id()), delta.first_token(), Start(delta.parent()))};
}

// How many tokens of its parent a delta card was made on. Below 1 where the two contradict each other.
int64_t TokensMadeOn(const Card& delta, const Card& parent) {
  return int64_t{delta.first_token()} - int64_t{parent.first_token()};
}

// A delta card is worth something only beside all that it was made on: its parent, of just as many tokens, and so the
// parent's parents, which were checked with the parent. Where they lie is not the delta's: it can be moved itself.
Status CheckFollows(const Card& delta, std::span<const CardPart> before) {
  const CardPart* other = nullptr;
  for (const CardPart& part : before) {
    if (part.card->content_id() != delta.parent()) continue;
    if (part.tokens == TokensMadeOn(delta, *part.card)) return {};
    other = &part;
  }
  if (other == nullptr) return WithoutParent(delta);
  return {
      StatusCode::kUnsupported,
      fmt::format("card {} was made on {} tokens of card {}, of which there are {} here: use it without the cards "
                  "that were made on another number of them",
                  Start(delta.content_id()), TokensMadeOn(delta, *other->card), Start(delta.parent()), other->tokens)};
}

// `end`: of the card before.
Status WrongPlace(const CardPart& part, uint32_t end) {
  return {StatusCode::kInvalidArgument,
          fmt::format("a card at position {}, but what comes before it ends at {}", part.offset, end)};
}

// Attention and restore take a card's tokens for neighbours.
Status CheckGaps(const CardPart& part) {
  for (uint32_t i = 0; i < part.tokens; ++i) {
    if (part.card->positions()[i] == part.card->position_offset() + static_cast<int32_t>(i)) continue;
    return {StatusCode::kUnsupported, fmt::format("token {} of the card is at position {}: only cards without gaps can "
                                                  "be used",
                                                  i, part.card->positions()[i])};
  }
  return {};
}

}  // namespace

Status AppendCard(std::shared_ptr<const Card> card, std::vector<CardPart>* parts) {
  CardPart* last = parts->empty() ? nullptr : &parts->back();
  if (card->has_parent()) {
    if (last != nullptr && last->card->content_id() == card->parent()) {
      const int64_t made_on = TokensMadeOn(*card, *last->card);
      if (made_on > 0 && made_on < last->tokens) last->tokens = static_cast<uint32_t>(made_on);  // and that suffices
    }
    QKV_RETURN_IF_ERROR(CheckFollows(*card, *parts));
  }
  const uint32_t tokens = card->tokens();
  parts->push_back({std::move(card), last == nullptr ? 0 : last->end(), tokens});
  return {};
}

Result<std::vector<CardPart>> PlaceCards(std::span<const std::shared_ptr<const Card>> cards) {
  if (cards.empty()) return Status(StatusCode::kInvalidArgument, "there is no card");
  std::vector<CardPart> parts;
  for (const std::shared_ptr<const Card>& card : cards) QKV_RETURN_IF_ERROR(AppendCard(card, &parts));
  return parts;
}

Status CheckCardOrder(std::span<const CardPart> parts) {
  uint32_t end = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const CardPart& part = parts[i];
    if (part.tokens == 0 || part.tokens > part.card->tokens()) {
      return {StatusCode::kInvalidArgument, fmt::format("{} tokens of a card of {}", part.tokens, part.card->tokens())};
    }
    if (part.offset < end || part.tokens > static_cast<uint32_t>(INT32_MAX) ||
        part.offset > static_cast<uint32_t>(INT32_MAX) - part.tokens) {
      return WrongPlace(part, end);
    }
    QKV_RETURN_IF_ERROR(CheckGaps(part));
    if (part.card->has_parent()) QKV_RETURN_IF_ERROR(CheckFollows(*part.card, parts.first(i)));
    end = part.end();
  }
  return {};
}

Status CheckCardList(std::span<const CardPart> parts) {
  uint32_t end = 0;
  for (const CardPart& part : parts) {
    if (part.offset != end) return WrongPlace(part, end);
    end = part.end();
  }
  return CheckCardOrder(parts);
}

Status CheckChain(std::span<const CardPart> parts) {
  const auto starts_anew = [](const CardPart& part) { return !part.card->has_parent(); };
  if (parts.empty()) return {};
  if (std::any_of(parts.begin() + 1, parts.end(), starts_anew)) {
    return {
        StatusCode::kUnsupported,
        fmt::format("a card of what follows can name one parent only, but there are {} cards that do not all continue "
                    "each other",
                    parts.size())};
  }
  // A receiver of the delta would put its parents where they were packed.
  if (parts.front().offset != 0 ||
      std::any_of(parts.begin(), parts.end(), [](const CardPart& part) { return part.shift() != 0; })) {
    return {StatusCode::kUnsupported,
            "cards that lie at other places than they were packed at cannot be continued by a card"};
  }
  return {};
}

std::vector<int32_t> TokensOf(std::span<const CardPart> parts) {
  std::vector<int32_t> tokens;
  for (const CardPart& part : parts) {
    const std::span<const int32_t> ids = part.card->token_ids().first(part.tokens);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  return tokens;
}

std::vector<CardPart> FirstTokens(std::vector<CardPart> parts, size_t tokens) {
  while (!parts.empty() && parts.back().offset >= tokens) parts.pop_back();
  if (!parts.empty()) {
    CardPart& last = parts.back();
    last.tokens = std::min(last.tokens, static_cast<uint32_t>(tokens) - last.offset);
  }
  return parts;
}

}  // namespace qkvshare
