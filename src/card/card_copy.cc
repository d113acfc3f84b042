#include "card/card_copy.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "card/card_assembly.h"
#include "quant/block.h"
#include "quant/row_scale.h"
#include "quant/tile.h"

namespace qkvshare {
namespace {

// The tokens of one level that come from one card, in the order in which they are stored.
struct LevelPart {
  const Card* card = nullptr;
  size_t run = 0;    // of the card's blocks
  size_t first = 0;  // row of the run
  size_t rows = 0;
};

// The plan of all tokens, and for each of its levels, in order, where its tokens come from.
struct MergedPlan {
  BitPlan plan;
  std::vector<std::vector<LevelPart>> parts;
};

// How many tokens below `end` each of the card's levels has.
std::vector<size_t> CountLevels(const Card& card, uint32_t end) {
  std::vector<size_t> counts(card.plan().levels.size(), 0);
  for (const uint8_t level : std::span(card.plan().level_of_token).first(end)) ++counts[level];
  return counts;
}

MergedPlan MergePlans(std::span<const CardRange> ranges) {
  MergedPlan merged;
  BitPlan& plan = merged.plan;
  for (const CardRange& range : ranges) {
    const std::vector<Level>& levels = range.card->plan().levels;
    const std::vector<size_t> before = CountLevels(*range.card, range.first);
    const std::vector<size_t> until = CountLevels(*range.card, range.end);
    std::vector<uint8_t> index(levels.size(), 0);  // of the card's levels among all
    for (size_t run = 0; run < levels.size(); ++run) {
      if (until[run] == before[run]) continue;
      const auto known = std::find(plan.levels.begin(), plan.levels.end(), levels[run]);
      index[run] = static_cast<uint8_t>(known - plan.levels.begin());
      if (known == plan.levels.end()) {
        plan.levels.push_back(levels[run]);  // there are no more pairs of widths than a card has levels
        merged.parts.emplace_back();
      }
      merged.parts[index[run]].push_back({range.card, run, before[run], until[run] - before[run]});
    }
    for (const uint8_t level : range.levels()) plan.level_of_token.push_back(index[level]);
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
  const int bits = from.run.bits;
  const uint8_t* block = part.card->block(place.layer, place.side, place.kv_head).data();
  TileRows rows;
  const size_t end = part.first + part.rows;
  for (size_t at = part.first; at < end;) {
    const size_t tile_start = at / kTileTokens * kTileTokens;
    const size_t in_tile = std::min(kTileTokens, from.run.tokens - tile_start);
    const uint8_t* tile = block + from.tile(tile_start);
    if (bits == 16) {
      std::memcpy(rows.data(), tile, in_tile * from.row_bytes());
    } else {
      UnpackTile(place.side, tile, in_tile, layout.dim, bits, rows.data());
    }
    for (; at < std::min(tile_start + in_tile, end); ++at) {
      const uint8_t* row = rows.data() + (at - tile_start) * from.row_bytes();
      const uint8_t* scale = bits < 16 ? block + from.scale(at) : nullptr;
      if (!IsValidRow(row, scale, layout.dim, bits)) {
        return {StatusCode::kCorrupt,
                fmt::format("card {} is not valid (rule 90): the packed {} of token {} are out of range",
                            ToHex(part.card->content_id()).substr(0, 12), SideName(place.side),
                            part.card->order().token_at[from.run.first + at])};
      }
      writer->Add(row, scale);
    }
  }
  return {};
}

}  // namespace

bool CardRange::has_codes() const {
  const auto is_code = [&](uint8_t level) { return card->plan().levels[level] != kExactLevel; };
  return std::any_of(levels().begin(), levels().end(), is_code);
}

void AddRange(const CardRange& range, CardContent* content) {
  const auto start = static_cast<uint32_t>(content->token_ids.size());
  const auto ids = range.card->token_ids().subspan(range.first, range.tokens());
  const auto positions = range.card->positions().subspan(range.first, range.tokens());
  content->token_ids.insert(content->token_ids.end(), ids.begin(), ids.end());
  content->positions.insert(content->positions.end(), positions.begin(), positions.end());
  for (Segment segment : range.card->info().segments) {
    const uint32_t first = std::max(segment.first_token, range.first);
    const uint32_t end = std::min(segment.first_token + segment.tokens, range.end);
    if (first >= end) continue;
    segment.first_token = first - range.first + start;
    segment.tokens = end - first;
    if (segment.parent.empty()) segment.parent = ToHex(range.card->content_id());
    content->info.segments.push_back(std::move(segment));
  }
}

Result<PackedCard> CopyRanges(std::span<const CardRange> ranges, const Card& of_codes, const std::string& policy,
                              const CardContent& content, int threads) {
  MergedPlan merged = MergePlans(ranges);
  merged.plan.policy = policy;
  merged.plan.layers = of_codes.plan().layers;
  const KeyProfiles profiles = of_codes.key_profiles();
  std::vector<LayerShape> shapes;
  for (size_t layer = 0; layer < of_codes.layers(); ++layer) shapes.push_back(of_codes.shape(layer));

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
