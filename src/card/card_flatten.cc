#include "card/card_flatten.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "card/card_chain.h"
#include "card/card_copy.h"
#include "card/format.h"

namespace qkvshare {
namespace {

std::string Start(const Card& card) { return ToHex(card.content_id()).substr(0, 12); }

Result<std::vector<CardRange>> LinksOf(std::span<const std::shared_ptr<const Card>> cards) {
  if (cards.empty()) return Status(StatusCode::kInvalidArgument, "there is no card");
  if (cards.front()->has_parent()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("card {} continues card {}: a chain starts with a card that continues none",
                              Start(*cards.front()), ToHex(cards.front()->parent())));
  }
  for (const std::shared_ptr<const Card>& card : cards) {
    if (card->info().context.empty()) continue;
    return Status(StatusCode::kUnsupported,
                  fmt::format("card {} was made on {} cards side by side, whose keys would have to be turned, and so "
                              "quantized again: use the cards as they are, or pack the text as one",
                              Start(*card), card->info().context.size()));
  }
  std::vector<CardRange> links;
  for (const std::shared_ptr<const Card>& card : cards) {
    if (!links.empty()) {
      CardRange& parent = links.back();
      QKV_RETURN_IF_ERROR(CheckLink(*parent.card, *card));
      parent.end = card->first_token() - parent.card->first_token();
    }
    links.push_back({card.get(), 0, card->tokens()});
  }
  return links;
}

// The card whose profile and widths of layers are those of all codes: the first that has codes, or else the first card.
Result<const CardRange*> LinkOfCodes(const std::vector<CardRange>& links) {
  const CardRange* first = nullptr;
  for (const CardRange& link : links) {
    if (!link.has_codes()) continue;
    if (first == nullptr) first = &link;
    const auto differ = [&](const char* what) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("cards {} and {} were packed with different {}, so their codes cannot lie in one card; "
                                "use them one after the other, or pack the text as one",
                                Start(*first->card), Start(*link.card), what));
    };
    if (link.card->key_profiles() != first->card->key_profiles()) return differ("means and scales");
    if (link.card->plan().layers != first->card->plan().layers) return differ("widths of layers");
  }
  return first != nullptr ? first : &links.front();
}

// What the one card says of all: texts that differ, in order, each once.
std::string Joined(const std::vector<CardRange>& links, std::string CardInfo::* text) {
  std::vector<std::string> texts;
  std::string joined;
  for (const CardRange& link : links) {
    const std::string& next = link.card->info().*text;
    if (std::find(texts.begin(), texts.end(), next) != texts.end()) continue;
    joined += (texts.empty() ? "" : "; ") + next;
    texts.push_back(next);
  }
  return joined;
}

std::vector<std::string> AllFeatures(const std::vector<CardRange>& links) {
  std::vector<std::string> all;
  for (const CardRange& link : links) {
    for (const std::string& feature : link.card->info().features) {
      if (std::find(all.begin(), all.end(), feature) == all.end()) all.push_back(feature);
    }
  }
  return all;
}

std::vector<Anchor> AllAnchors(const std::vector<CardRange>& links) {
  std::map<uint32_t, float> weights;
  for (const CardRange& link : links) {
    for (const Anchor& anchor : link.card->anchors()) {
      if (anchor.token >= link.card->first_token() + link.end) break;  // of tokens that are left out
      float& weight = weights[anchor.token];
      weight = std::max(weight, anchor.weight);
    }
  }
  std::vector<Anchor> all;
  for (const auto& [token, weight] : weights) all.push_back({token, weight});
  if (all.size() > card_format::kMaxAnchors) {
    std::sort(all.begin(), all.end(), [](const Anchor& a, const Anchor& b) {
      return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
    });
    all.resize(card_format::kMaxAnchors);
    std::sort(all.begin(), all.end(), [](const Anchor& a, const Anchor& b) { return a.token < b.token; });
  }
  return all;
}

CardContent ContentOf(const std::vector<CardRange>& links, const CardRange* of_codes) {
  CardContent content;
  const Card& last = *links.back().card;
  content.info = last.info();
  content.info.segments.clear();
  content.exact_tokens = 0;
  bool only_exact = true;  // so far
  for (const CardRange& link : links) {
    AddRange(link, &content);
    const uint32_t exact = std::min(link.card->exact_tokens(), link.end);
    if (only_exact) content.exact_tokens += exact;
    only_exact = only_exact && exact == link.end;
  }
  content.identity = last.identity();
  content.info.features = AllFeatures(links);
  content.info.cache_type = Joined(links, &CardInfo::cache_type);
  content.info.rounding = Joined(links, &CardInfo::rounding);
  content.hop = last.hop();
  content.protected_tokens = last.protected_tokens();
  while (of_codes->card->profile().kind == ProfileKind::kInherited) --of_codes;  // the parent has the same
  content.profile = of_codes->card->profile();
  content.anchors = AllAnchors(links);
  for (size_t layer = 0; layer < last.layers(); ++layer) content.windows.push_back(last.window(layer));
  return content;
}

}  // namespace

Result<PackedCard> FlattenCards(std::span<const std::shared_ptr<const Card>> cards, int threads) {
  QKV_ASSIGN_OR_RETURN(const std::vector<CardRange> links, LinksOf(cards));
  QKV_ASSIGN_OR_RETURN(const CardRange* of_codes, LinkOfCodes(links));
  return CopyRanges(links, *of_codes->card, "flattened: " + Joined(links, &CardInfo::policy),
                    ContentOf(links, of_codes), threads);
}

}  // namespace qkvshare
