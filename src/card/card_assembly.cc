#include "card/card_assembly.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "base/parallel.h"
#include "card/card.h"
#include "card/format.h"

namespace qkvshare {

using namespace card_format;  // NOLINT(google-build-using-namespace): this file is the format

namespace {

using Buffer = std::vector<uint8_t>;

template <typename T>
Buffer BytesOf(const std::vector<T>& values) {
  Buffer bytes;
  ByteWriter(&bytes).PutBytes(values.data(), values.size() * sizeof(T));
  return bytes;
}

Buffer TextBytes(const std::string& text) { return {text.begin(), text.end()}; }

Status CheckShape(const LayerShape& shape, size_t layer) {
  if (!IsValidShape(shape)) {
    return {StatusCode::kUnsupported,
            fmt::format("layer {} has {} KV heads of sizes {} and {}; sizes must be multiples of 8 up to {}", layer,
                        shape.kv_heads, shape.key_dim, shape.value_dim, kMaxHeadDim)};
  }
  return {};
}

bool ProfilesFit(const std::vector<LayerShape>& shapes, const KeyProfiles& profiles) {
  if (profiles.empty()) return true;
  if (profiles.size() != shapes.size()) return false;
  for (size_t i = 0; i < profiles.size(); ++i) {
    const LayerShape& shape = shapes[i];
    if (profiles[i].size() != shape.kv_heads) return false;
    const auto fits = [&](const ChannelProfile& profile) { return IsValidProfile(profile, shape.key_dim); };
    if (!std::all_of(profiles[i].begin(), profiles[i].end(), fits)) return false;
  }
  return true;
}

// A parent, its profile, windows and anchors.
Status CheckContext(const CardParts& card) {
  const CardContent& content = card.content;
  const auto invalid = [](const std::string& what) { return Status(StatusCode::kInvalidArgument, "pack: " + what); };
  const bool has_parent = content.parent != Digest{};
  if (has_parent != (content.first_token > 0)) return invalid("a card has a parent where it starts after token 0");
  if (has_parent && content.hop == 0) return invalid("a card with a parent is at hop 0");
  if (content.hop > kMaxHop) return invalid(fmt::format("hop {} is past the limit of {}", content.hop, kMaxHop));
  if (content.first_token > kMaxContextTokens - card.tokens) return invalid("the context has too many tokens");
  if (content.protected_tokens > card.tokens) return invalid("more protected tokens than tokens");
  const bool is_static = !card.profiles.empty() && content.profile.kind == ProfileKind::kStatic;
  if (is_static != (content.profile.id != Digest{})) return invalid("a static profile, and no other, has an id");
  if (!has_parent && content.profile.kind == ProfileKind::kInherited) {
    return invalid("a profile is inherited from a parent, but there is none");
  }
  if (!content.windows.empty() && content.windows.size() != card.shapes.size()) {
    return invalid(fmt::format("windows of {} layers, but {} layers", content.windows.size(), card.shapes.size()));
  }
  for (const uint32_t window : content.windows) {
    if (window > kMaxContextTokens) return invalid(fmt::format("a window of {} tokens", window));
  }
  if (content.anchors.size() > kMaxAnchors) return invalid(fmt::format("{} anchors", content.anchors.size()));
  for (size_t i = 0; i < content.anchors.size(); ++i) {
    const Anchor& anchor = content.anchors[i];
    const bool ascends = i == 0 || anchor.token > content.anchors[i - 1].token;
    const bool is_share = anchor.weight > 0 && anchor.weight <= 1;  // no NaN
    if (!ascends || !is_share || anchor.token >= content.first_token + card.tokens) {
      return invalid(fmt::format("anchor {} is out of order or out of range", i));
    }
  }
  return {};
}

Status CheckParts(const CardParts& card) {
  const CardContent& content = card.content;
  const auto invalid = [](const std::string& what) { return Status(StatusCode::kInvalidArgument, "pack: " + what); };
  if (card.tokens == 0) return invalid("there are no tokens to pack");
  if (card.tokens > kMaxTokens) {
    return {StatusCode::kOutOfRange, fmt::format("a card holds at most {} tokens, not {}", kMaxTokens, card.tokens)};
  }
  if (card.shapes.empty() || card.shapes.size() > kMaxLayers)
    return invalid(fmt::format("{} layers", card.shapes.size()));
  if (content.token_ids.size() != card.tokens || content.positions.size() != card.tokens) {
    return invalid(fmt::format("{} rows, {} token ids and {} positions must be equal in number", card.tokens,
                               content.token_ids.size(), content.positions.size()));
  }
  if (content.positions.front() < 0 || content.token_ids[0] < 0)
    return invalid("the first position or token id is negative");
  for (size_t i = 1; i < card.tokens; ++i) {
    if (content.token_ids[i] < 0) return invalid(fmt::format("the id of token {} is negative", i));
    if (content.positions[i] <= content.positions[i - 1]) return invalid(fmt::format("position {} does not ascend", i));
  }
  for (size_t i = 0; i < card.shapes.size(); ++i) QKV_RETURN_IF_ERROR(CheckShape(card.shapes[i], i));
  if (!ProfilesFit(card.shapes, card.profiles))
    return invalid("the key profiles are of another model or hold values out of range");
  const RopeParams& rope = content.identity.first_rope;
  for (const float x : {rope.base, rope.scale, rope.ext_factor, rope.attn_factor}) {
    if (!std::isfinite(x)) return invalid("a RoPE parameter is not finite");
  }
  if (rope.dims < 0 || rope.dims > kMaxRopeDims || rope.mode < 0 || rope.mode > kMaxRopeMode) {
    return invalid(fmt::format("RoPE of {} dimensions, mode {}", rope.dims, rope.mode));
  }
  QKV_RETURN_IF_ERROR(CheckSegments(content.info.segments, static_cast<uint32_t>(card.tokens)));
  QKV_RETURN_IF_ERROR(
      CheckContextCards(content.info.context, content.parent, content.first_token, content.positions.front()));
  if (content.info.context.size() > kMaxContextCards) return invalid("a context of too many cards");
  QKV_RETURN_IF_ERROR(CheckContext(card));
  return ValidatePlan(card.plan, card.tokens, card.shapes.size());
}

Buffer GeometryBytes(const CardParts& card) {
  const CardContent& content = card.content;
  Geometry geometry{};
  geometry.tokens = static_cast<uint32_t>(card.tokens);
  geometry.layers = static_cast<uint32_t>(card.shapes.size());
  geometry.levels = static_cast<uint32_t>(card.plan.levels.size());
  geometry.position_offset = content.positions.front();
  geometry.tile_tokens = kTileTokens;
  geometry.exact_tokens = static_cast<uint32_t>(std::min<size_t>(content.exact_tokens, card.tokens));
  geometry.hop = content.hop;
  geometry.key_codec = kRowCodec;
  geometry.value_codec = kRowCodec;
  const RopeParams& rope = content.identity.first_rope;
  geometry.rope_dims = rope.dims;
  geometry.rope_mode = rope.mode;
  geometry.rope_base = rope.base;
  geometry.rope_scale = rope.scale;
  geometry.rope_ext_factor = rope.ext_factor;
  geometry.rope_attn_factor = rope.attn_factor;
  geometry.average_code_bits = AverageCodeBits(card.plan, card.shapes);
  geometry.model_fingerprint = content.identity.model;
  geometry.rope_fingerprint = content.identity.rope;
  geometry.first_token = content.first_token;
  geometry.protected_tokens = content.protected_tokens;
  geometry.profile_kind = static_cast<uint32_t>(card.profiles.empty() ? ProfileKind::kNone : content.profile.kind);
  geometry.parent = content.parent;
  geometry.profile = content.profile.id;
  Buffer bytes;
  ByteWriter(&bytes).Put(geometry);
  return bytes;
}

Buffer LayersBytes(const CardParts& card) {
  Buffer bytes;
  for (size_t layer = 0; layer < card.shapes.size(); ++layer) {
    const LayerShape& shape = card.shapes[layer];
    LayerEntry entry{};
    entry.kv_heads = shape.kv_heads;
    entry.key_dim = static_cast<uint16_t>(shape.key_dim);
    entry.value_dim = static_cast<uint16_t>(shape.value_dim);
    entry.key_rotation_block = static_cast<uint16_t>(RotationBlock(shape.key_dim));
    entry.value_rotation_block = static_cast<uint16_t>(RotationBlock(shape.value_dim));
    entry.key_adjustment = card.plan.adjustment(layer).keys;
    entry.value_adjustment = card.plan.adjustment(layer).values;
    entry.window = card.content.windows.empty() ? 0 : card.content.windows[layer];
    ByteWriter(&bytes).Put(entry);
  }
  return bytes;
}

Buffer AnchorBytes(const std::vector<Anchor>& anchors) {
  Buffer bytes;
  for (const Anchor& anchor : anchors) ByteWriter(&bytes).Put(AnchorEntry{anchor.token, anchor.weight});
  return bytes;
}

Buffer ProfileBytes(const KeyProfiles& profiles) {
  Buffer bytes;
  for (const auto& layer : profiles) {
    for (const ChannelProfile& profile : layer) {
      ByteWriter(&bytes).PutBytes(profile.mean.data(), profile.mean.size() * sizeof(Half));
      ByteWriter(&bytes).PutBytes(profile.scale.data(), profile.scale.size() * sizeof(Half));
    }
  }
  return bytes;
}

// The blocks of one layer and side.
Status FillSection(const CardParts& card, const TokenOrder& order, size_t layer, Side side, const FillBlock& fill,
                   Buffer* out) {
  const LayerShape& shape = card.shapes[layer];
  const BlockLayout layout = BlockLayout::Make(shape.dim(side), card.plan.SideBitsOf(layer, side), order.level_size);
  out->resize(shape.kv_heads * layout.bytes);
  for (uint32_t head = 0; head < shape.kv_heads; ++head) {
    const Status status = fill({layer, side, head}, order, layout, out->data() + head * layout.bytes);
    if (!status.ok()) return {status.code(), fmt::format("layer {}: {}", layer, status.message())};
  }
  return {};
}

// Header and section table, with every checksum and digest.
Buffer HeadBytes(const std::vector<Buffer>& sections, int threads) {
  std::vector<SectionEntry> entries(sections.size());
  const auto layers = static_cast<uint32_t>((sections.size() - kSingleSections) / 2);
  uint64_t end = sizeof(FileHeader) + entries.size() * sizeof(SectionEntry);
  for (uint32_t i = 0; i < entries.size(); ++i) {
    const uint32_t payload = i < kSingleSections ? 0 : i - kSingleSections;
    entries[i].type = i < kSingleSections ? i + 1 : static_cast<uint32_t>(SectionType::kKeys) + payload / layers;
    entries[i].index = i < kSingleSections ? 0 : payload % layers;
    entries[i].offset = AlignUp(end, kSectionAlignment);
    entries[i].bytes = sections[i].size();
    end = entries[i].offset + entries[i].bytes;
  }
  // Digesting cannot fail.
  (void)ParallelFor(entries.size(), threads, [&](size_t i) {
    entries[i].checksum = Xxh3(sections[i]);
    entries[i].digest = Blake2b(sections[i]);
    return Status();
  });
  const Buffer table = BytesOf(entries);
  FileHeader header{};
  header.magic = kMagic;
  header.version = kVersion;
  header.header_bytes = sizeof(FileHeader);
  header.section_count = static_cast<uint32_t>(entries.size());
  header.section_entry_bytes = sizeof(SectionEntry);
  header.file_bytes = end;
  header.content_id = Blake2b(table);
  Buffer head;
  ByteWriter writer(&head);
  writer.PutBytes(&header, offsetof(FileHeader, checksum));
  writer.PutBytes(table.data(), table.size());
  header.checksum = Xxh3(head);
  head.clear();
  writer.Put(header);
  writer.PutBytes(table.data(), table.size());
  return head;
}

}  // namespace

Result<PackedCard> AssembleCard(const CardParts& card, int threads, const FillBlock& fill) {
  QKV_RETURN_IF_ERROR(CheckParts(card));
  CardInfo info = card.content.info;
  info.policy = card.plan.policy;
  std::vector<uint8_t> level_bits;
  for (const Level level : card.plan.levels) level_bits.insert(level_bits.end(), {level.key_bits, level.value_bits});

  const size_t layers = card.shapes.size();
  std::vector<Buffer> sections = {GeometryBytes(card),
                                  LayersBytes(card),
                                  BytesOf(card.content.token_ids),
                                  BytesOf(card.content.positions),
                                  level_bits,
                                  card.plan.level_of_token,
                                  TextBytes(CardInfoToJson(info)),
                                  ProfileBytes(card.profiles),
                                  AnchorBytes(card.content.anchors)};
  if (sections[6].size() > kMaxInfoBytes)
    return Status(StatusCode::kOutOfRange, "pack: names and segments are too long");
  sections.resize(kSingleSections + 2 * layers);
  const TokenOrder order = OrderTokens(card.plan);
  QKV_RETURN_IF_ERROR(ParallelFor(2 * layers, threads, [&](size_t i) {
    const Side side = i < layers ? Side::kKeys : Side::kValues;
    return FillSection(card, order, i % layers, side, fill, &sections[kSingleSections + i]);
  }));
  Buffer head = HeadBytes(sections, threads);
  return PackedCard(std::move(head), std::move(sections));
}

}  // namespace qkvshare
