#include "card/card_flatten.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "card/card_assembly.h"
#include "card/card_chain.h"
#include "card/format.h"
#include "quant/block.h"
#include "quant/row_scale.h"
#include "quant/tile.h"

namespace qkvshare {
namespace {

std::string Start(const Card& card) { return ToHex(card.content_id()).substr(0, 12); }

// The first `tokens` tokens of a card, which are all that the chain has of it.
struct Link {
  const Card* card = nullptr;
  uint32_t tokens = 0;

  std::span<const uint8_t> levels() const { return std::span(card->plan().level_of_token).first(tokens); }
  // Whether any of them is quantized, so that profile and widths of layers count.
  bool has_codes() const {
    return std::any_of(levels().begin(), levels().end(),
                       [&](uint8_t level) { return card->plan().levels[level] != kExactLevel; });
  }
  uint32_t end() const { return card->first_token() + tokens; }
};

Result<std::vector<Link>> LinksOf(std::span<const std::shared_ptr<const Card>> cards) {
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
  std::vector<Link> links;
  for (const std::shared_ptr<const Card>& card : cards) {
    if (!links.empty()) {
      Link& parent = links.back();
      QKV_RETURN_IF_ERROR(CheckLink(*parent.card, *card));
      parent.tokens = card->first_token() - parent.card->first_token();
    }
    links.push_back({card.get(), card->tokens()});
  }
  return links;
}

// The card whose profile and widths of layers are those of all codes: the first that has codes, or else the first card.
Result<const Link*> LinkOfCodes(const std::vector<Link>& links) {
  const Link* first = nullptr;
  for (const Link& link : links) {
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
std::string Joined(const std::vector<Link>& links, std::string CardInfo::* text) {
  std::vector<std::string> texts;
  std::string joined;
  for (const Link& link : links) {
    const std::string& next = link.card->info().*text;
    if (std::find(texts.begin(), texts.end(), next) != texts.end()) continue;
    joined += (texts.empty() ? "" : "; ") + next;
    texts.push_back(next);
  }
  return joined;
}

std::vector<std::string> AllFeatures(const std::vector<Link>& links) {
  std::vector<std::string> all;
  for (const Link& link : links) {
    for (const std::string& feature : link.card->info().features) {
      if (std::find(all.begin(), all.end(), feature) == all.end()) all.push_back(feature);
    }
  }
  return all;
}

std::vector<Segment> AllSegments(const std::vector<Link>& links) {
  std::vector<Segment> all;
  for (const Link& link : links) {
    for (Segment segment : link.card->info().segments) {
      if (segment.first_token >= link.tokens) break;
      segment.tokens = std::min(segment.tokens, link.tokens - segment.first_token);
      segment.first_token += link.card->first_token();
      if (segment.parent.empty()) segment.parent = ToHex(link.card->content_id());
      all.push_back(std::move(segment));
    }
  }
  return all;
}

std::vector<Anchor> AllAnchors(const std::vector<Link>& links) {
  std::map<uint32_t, float> weights;
  for (const Link& link : links) {
    for (const Anchor& anchor : link.card->anchors()) {
      if (anchor.token >= link.end()) break;  // of tokens that are left out
      float& weight = weights[anchor.token];
      weight = std::max(weight, anchor.weight);
    }
  }
  std::vector<Anchor> all;
  for (const auto& [token, weight] : weights) all.push_back({token, weight});
  if (all.size() > card_format::kMaxAnchors) {
    std::stable_sort(all.begin(), all.end(), [](const Anchor& a, const Anchor& b) { return a.weight > b.weight; });
    all.resize(card_format::kMaxAnchors);
    std::sort(all.begin(), all.end(), [](const Anchor& a, const Anchor& b) { return a.token < b.token; });
  }
  return all;
}

CardContent ContentOf(const std::vector<Link>& links, const Link* of_codes) {
  CardContent content;
  const Card& last = *links.back().card;
  content.exact_tokens = 0;
  bool only_exact = true;  // so far
  for (const Link& link : links) {
    const Card& card = *link.card;
    content.token_ids.insert(content.token_ids.end(), card.token_ids().begin(), card.token_ids().begin() + link.tokens);
    content.positions.insert(content.positions.end(), card.positions().begin(), card.positions().begin() + link.tokens);
    const uint32_t exact = std::min(card.exact_tokens(), link.tokens);
    if (only_exact) content.exact_tokens += exact;
    only_exact = only_exact && exact == link.tokens;
  }
  content.identity = last.identity();
  content.info = last.info();
  content.info.segments = AllSegments(links);
  content.info.features = AllFeatures(links);
  content.info.cache_type = Joined(links, &CardInfo::cache_type);
  content.hop = last.hop();
  content.protected_tokens = last.protected_tokens();
  while (of_codes->card->profile().kind == ProfileKind::kInherited) --of_codes;  // the parent has the same
  content.profile = of_codes->card->profile();
  content.anchors = AllAnchors(links);
  for (size_t layer = 0; layer < last.layers(); ++layer) content.windows.push_back(last.window(layer));
  return content;
}

// The tokens of one level that come from one card: the first ones of its run of that level.
struct LevelPart {
  const Card* card = nullptr;
  size_t run = 0;  // of the card's blocks
  size_t tokens = 0;
};

// The plan of all tokens, and for each of its levels, in order, where its tokens come from.
struct MergedPlan {
  BitPlan plan;
  std::vector<std::vector<LevelPart>> parts;
};

MergedPlan MergePlans(const std::vector<Link>& links, const Link* of_codes) {
  MergedPlan merged;
  BitPlan& plan = merged.plan;
  plan.policy = "flattened: " + Joined(links, &CardInfo::policy);
  plan.layers = of_codes->card->plan().layers;
  for (const Link& link : links) {
    const std::vector<Level>& levels = link.card->plan().levels;
    std::vector<size_t> counts(levels.size(), 0);
    for (const uint8_t level : link.levels()) ++counts[level];
    std::vector<uint8_t> index(levels.size(), 0);  // of the card's levels among all
    for (size_t run = 0; run < levels.size(); ++run) {
      if (counts[run] == 0) continue;
      const auto known = std::find(plan.levels.begin(), plan.levels.end(), levels[run]);
      index[run] = static_cast<uint8_t>(known - plan.levels.begin());
      if (known == plan.levels.end()) {
        plan.levels.push_back(levels[run]);  // there are no more pairs of widths than a card has levels
        merged.parts.emplace_back();
      }
      merged.parts[index[run]].push_back({link.card, run, counts[run]});
    }
    for (const uint8_t level : link.levels()) plan.level_of_token.push_back(index[level]);
  }
  return merged;
}

// One run of a block: its tiles and its scales.
struct RunPlace {
  const BlockLayout& layout;
  const BlockLayout::Run& run;

  size_t row_bytes() const { return run.bits == 16 ? layout.dim * sizeof(Half) : layout.dim; }  // unpacked
  size_t tile(size_t first) const {
    return first < run.full_tokens() ? run.full_offset + TileBytes(first, layout.dim, run.bits) : run.tail_offset;
  }
  size_t scale(size_t row) const { return layout.scales_offset + (run.first_scale + row) * sizeof(RowScale); }
};

// Rows of a tile, one after the other: codes, one a byte, or values.
struct alignas(64) TileRows : std::array<uint8_t, kTileTokens * kMaxHeadDim * sizeof(Half)> {};

// Fills a run with rows as they come.
class RunWriter {
 public:
  RunWriter(Side side, const RunPlace& to, uint8_t* block) : side_(side), to_(to), block_(block) {}

  void Add(const uint8_t* row, const uint8_t* scale) {
    std::memcpy(rows_.data() + filled_ * to_.row_bytes(), row, to_.row_bytes());
    if (to_.run.bits < 16) std::memcpy(block_ + to_.scale(done_ + filled_), scale, sizeof(RowScale));
    if (++filled_ == kTileTokens) Flush();
  }
  void Flush() {
    uint8_t* tile = block_ + to_.tile(done_);
    if (filled_ > 0 && to_.run.bits == 16) std::memcpy(tile, rows_.data(), filled_ * to_.row_bytes());
    if (filled_ > 0 && to_.run.bits < 16) PackTile(side_, rows_.data(), filled_, to_.layout.dim, to_.run.bits, tile);
    done_ += filled_;
    filled_ = 0;
  }

 private:
  const Side side_;
  const RunPlace to_;
  uint8_t* const block_;
  TileRows rows_;
  size_t filled_ = 0, done_ = 0;
};

// Rule 90: what is copied must be what every reader takes.
bool IsValidRow(const uint8_t* row, const uint8_t* scale, size_t dim, int bits) {
  if (bits < 16) {
    RowScale value = 0;
    std::memcpy(&value, scale, sizeof value);
    return IsValidScale(value);
  }
  for (size_t c = 0; c < dim; ++c) {
    Half value = 0;
    std::memcpy(&value, row + c * sizeof value, sizeof value);
    if (!IsFiniteHalf(value)) return false;
  }
  return true;
}

Status CopyPart(const LevelPart& part, const BlockPlace& place, RunWriter* writer) {
  const BlockLayout layout = part.card->layout(place.layer, place.side);
  const RunPlace from{layout, layout.runs[part.run]};
  const size_t dim = layout.dim;
  const int bits = from.run.bits;
  const uint8_t* block = part.card->block(place.layer, place.side, place.kv_head).data();
  TileRows rows;
  for (size_t first = 0; first < part.tokens; first += kTileTokens) {
    const size_t in_tile = std::min(kTileTokens, from.run.tokens - first);
    const uint8_t* tile = block + from.tile(first);
    if (bits == 16) {
      std::memcpy(rows.data(), tile, in_tile * from.row_bytes());
    } else {
      UnpackTile(place.side, tile, in_tile, dim, bits, rows.data());
    }
    for (size_t i = 0; i < std::min(in_tile, part.tokens - first); ++i) {
      const uint8_t* row = rows.data() + i * from.row_bytes();
      const uint8_t* scale = bits < 16 ? block + from.scale(first + i) : nullptr;
      if (!IsValidRow(row, scale, dim, bits)) {
        return {
            StatusCode::kCorrupt,
            fmt::format("card {} is not valid (rule 90): the packed {} of token {} are out of range", Start(*part.card),
                        SideName(place.side), part.card->order().token_at[from.run.first + first + i])};
      }
      writer->Add(row, scale);
    }
  }
  return {};
}

}  // namespace

Result<PackedCard> FlattenCards(std::span<const std::shared_ptr<const Card>> cards, int threads) {
  QKV_ASSIGN_OR_RETURN(const std::vector<Link> links, LinksOf(cards));
  QKV_ASSIGN_OR_RETURN(const Link* of_codes, LinkOfCodes(links));
  const MergedPlan merged = MergePlans(links, of_codes);
  const KeyProfiles profiles = of_codes->card->key_profiles();
  const CardContent content = ContentOf(links, of_codes);
  const Card& root = *links.front().card;
  std::vector<LayerShape> shapes;
  for (size_t layer = 0; layer < root.layers(); ++layer) shapes.push_back(root.shape(layer));

  const auto copy = [&](const BlockPlace& place, const TokenOrder&, const BlockLayout& layout, uint8_t* block) {
    std::fill_n(block, layout.bytes, uint8_t{0});
    for (size_t level = 0; level < merged.parts.size(); ++level) {
      RunWriter writer(place.side, {layout, layout.runs[level]}, block);
      for (const LevelPart& part : merged.parts[level]) QKV_RETURN_IF_ERROR(CopyPart(part, place, &writer));
      writer.Flush();
    }
    return Status();
  };
  return AssembleCard({content.token_ids.size(), shapes, merged.plan, profiles, content}, threads, copy);
}

}  // namespace qkvshare
