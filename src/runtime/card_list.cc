#include "runtime/card_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/hash.h"
#include "card/format.h"

namespace qkvshare {
namespace {

std::string Start(const Digest& digest) { return ToHex(digest).substr(0, 12); }

// How many tokens of its parent a delta card was made on. Below 1 where the two contradict each other.
int64_t TokensMadeOn(const Card& delta, const Card& parent) {
  const std::vector<ContextCard>& context = delta.info().context;
  return context.empty() ? int64_t{delta.first_token()} - int64_t{parent.first_token()} : context.back().tokens;
}

// Of a card that was made on `tokens` tokens of another one, which are not there.
Status Lacks(const Card& card, const Digest& needed, int64_t tokens, std::span<const CardPart> before) {
  const auto differs = [&](const CardPart& part) {
    return part.card->content_id() == needed && part.tokens != tokens;  // not where one is needed twice
  };
  const auto other = std::find_if(before.begin(), before.end(), differs);
  if (other == before.end()) {
    return {StatusCode::kMismatch,
            fmt::format("card {} holds tokens {} and on of a context and continues card {}: give that card before it",
                        Start(card.content_id()), card.first_token(), Start(needed))};
  }
  return {StatusCode::kUnsupported,
          fmt::format("card {} was made on {} tokens of card {}, of which there are {} here: use it without the cards "
                      "that were made on another number of them",
                      Start(card.content_id()), tokens, Start(needed), other->tokens)};
}

// Whether all that a delta card was made on comes before it, just as it was: its parent, and with that the parent's
// parents, or the cards of its context. Where they lie does not matter: it is then moved itself.
Status CheckFollows(const Card& delta, std::span<const CardPart> before) {
  const std::vector<ContextCard>& context = delta.info().context;
  if (context.empty()) {
    int64_t made_on = 0;
    for (const CardPart& part : before) {
      if (part.card->content_id() != delta.parent()) continue;
      made_on = TokensMadeOn(delta, *part.card);
      if (part.tokens == made_on) return {};
    }
    return Lacks(delta, delta.parent(), made_on, before);
  }
  std::map<std::pair<Digest, uint32_t>, size_t> there;
  for (const CardPart& part : before) ++there[{part.card->content_id(), part.tokens}];
  for (const ContextCard& entry : context) {
    size_t& left = there[{entry.card, entry.tokens}];
    if (left == 0) return Lacks(delta, entry.card, entry.tokens, before);
    --left;
  }
  return {};
}

// Whether a card of the list lies elsewhere than where the one before ends, or the first not at 0.
bool HasGaps(std::span<const CardPart> parts) {
  uint32_t end = 0;
  for (const CardPart& part : parts) {
    if (part.offset != end) return true;
    end = part.end();
  }
  return false;
}

// Leaves as many tokens of the last part as the card was made on, where that is its parent.
void CutFor(const Card& delta, std::vector<CardPart>* parts) {
  if (parts->empty()) return;
  CardPart& last = parts->back();
  if (last.card->content_id() != delta.parent()) return;
  const int64_t made_on = TokensMadeOn(delta, *last.card);
  if (made_on > 0 && made_on < last.tokens) last.tokens = static_cast<uint32_t>(made_on);
}

// How many tokens of each card are to be there: as many as those after it say that their context had of it, else all.
// Where they say different numbers, a card that is there several times serves them one after the other.
std::vector<uint32_t> TokensInContexts(std::span<const std::shared_ptr<const Card>> cards) {
  std::vector<uint32_t> tokens(cards.size(), 0);  // 0: nothing is said
  std::map<Digest, std::vector<size_t>> places;
  for (size_t i = 0; i < cards.size(); ++i) {
    std::set<size_t> used;  // by this card: its context may have another one twice
    for (const ContextCard& entry : cards[i]->info().context) {
      for (const size_t place : places[entry.card]) {
        if (used.contains(place) || entry.tokens > cards[place]->tokens()) continue;
        if (tokens[place] != 0 && tokens[place] != entry.tokens) continue;
        tokens[place] = entry.tokens;
        used.insert(place);
        break;
      }
    }
    places[cards[i]->content_id()].push_back(i);
  }
  for (size_t i = 0; i < cards.size(); ++i) tokens[i] = tokens[i] == 0 ? cards[i]->tokens() : tokens[i];
  return tokens;
}

// Whether the last card lies where it was packed, and so does all that it was made on, and nothing else is there.
bool IsOwnContext(std::span<const CardPart> parts) {
  for (; !parts.empty(); parts = parts.first(parts.size() - 1)) {
    const CardPart& last = parts.back();
    const std::span<const CardPart> before = parts.first(parts.size() - 1);
    if (last.shift() != 0 || last.offset != last.card->first_token()) return false;
    if (const std::vector<ContextCard>& context = last.card->info().context; !context.empty()) {
      const auto same = [](const CardPart& part, const ContextCard& entry) {
        return part.card->content_id() == entry.card && part.tokens == entry.tokens;
      };
      return std::equal(before.begin(), before.end(), context.begin(), context.end(), same);
    }
    const Digest before_it = before.empty() ? Digest{} : before.back().card->content_id();
    if (last.card->parent() != before_it) return false;
  }
  return true;
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
  std::vector<CardPart> before = *parts;
  if (card->has_parent()) {
    CutFor(*card, &before);
    QKV_RETURN_IF_ERROR(CheckFollows(*card, before));
  }
  const uint32_t tokens = card->tokens();
  const uint32_t end = before.empty() ? 0 : before.back().end();
  before.push_back({std::move(card), end, tokens});
  *parts = std::move(before);
  return {};
}

Result<std::vector<CardPart>> PlaceCards(std::span<const std::shared_ptr<const Card>> cards) {
  if (cards.empty()) return Status(StatusCode::kInvalidArgument, "there is no card");
  const std::vector<uint32_t> tokens = TokensInContexts(cards);
  std::vector<CardPart> parts;
  for (size_t i = 0; i < cards.size(); ++i) {
    QKV_RETURN_IF_ERROR(AppendCard(cards[i], &parts));
    parts.back().tokens = tokens[i];
  }
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

Result<std::vector<ContextCard>> ContextOf(std::span<const CardPart> parts) {
  std::vector<ContextCard> context;
  if (HasGaps(parts)) {
    return Status(StatusCode::kUnsupported,
                  "there are gaps between the cards, of which a card of what follows them "
                  "cannot tell: place each where the one before ends");
  }
  if (IsOwnContext(parts)) return context;
  if (parts.size() > card_format::kMaxContextCards) {
    return Status(StatusCode::kUnsupported, fmt::format("a card of what follows can name {} cards, not {}",
                                                        card_format::kMaxContextCards, parts.size()));
  }
  for (const CardPart& part : parts) context.push_back({part.card->content_id(), part.tokens});
  return context;
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
