#include "card/card_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/file.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "card/card.h"
#include "card/format.h"
#include "quant/block.h"

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

bool ProfilesFit(const KvView& kv, const KeyProfiles& profiles) {
  if (profiles.empty()) return true;
  if (profiles.size() != kv.layers.size()) return false;
  for (size_t i = 0; i < profiles.size(); ++i) {
    const LayerShape& shape = kv.layers[i].shape;
    if (profiles[i].size() != shape.kv_heads) return false;
    const auto fits = [&](const ChannelProfile& profile) { return IsValidProfile(profile, shape.key_dim); };
    if (!std::all_of(profiles[i].begin(), profiles[i].end(), fits)) return false;
  }
  return true;
}

// A parent, its profile, windows and anchors.
Status CheckContext(const KvView& kv, const KeyProfiles& profiles, const CardContent& content) {
  const auto invalid = [](const std::string& what) { return Status(StatusCode::kInvalidArgument, "pack: " + what); };
  const bool has_parent = content.parent != Digest{};
  if (has_parent != (content.first_token > 0)) return invalid("a card has a parent where it starts after token 0");
  if (has_parent && content.hop == 0) return invalid("a card with a parent is at hop 0");
  if (content.hop > kMaxHop) return invalid(fmt::format("hop {} is past the limit of {}", content.hop, kMaxHop));
  if (content.first_token > kMaxContextTokens - kv.tokens) return invalid("the context has too many tokens");
  if (content.protected_tokens > kv.tokens) return invalid("more protected tokens than tokens");
  const bool is_static = !profiles.empty() && content.profile.kind == ProfileKind::kStatic;
  if (is_static != (content.profile.id != Digest{})) return invalid("a static profile, and no other, has an id");
  if (!content.windows.empty() && content.windows.size() != kv.layers.size()) {
    return invalid(fmt::format("windows of {} layers, but {} layers", content.windows.size(), kv.layers.size()));
  }
  for (const uint32_t window : content.windows) {
    if (window > kMaxContextTokens) return invalid(fmt::format("a window of {} tokens", window));
  }
  if (content.anchors.size() > kMaxAnchors) return invalid(fmt::format("{} anchors", content.anchors.size()));
  for (size_t i = 0; i < content.anchors.size(); ++i) {
    const Anchor& anchor = content.anchors[i];
    const bool ascends = i == 0 || anchor.token > content.anchors[i - 1].token;
    const bool is_share = anchor.weight > 0 && anchor.weight <= 1;  // no NaN
    if (!ascends || !is_share || anchor.token >= content.first_token + kv.tokens) {
      return invalid(fmt::format("anchor {} is out of order or out of range", i));
    }
  }
  return {};
}

Status CheckContent(const KvView& kv, const BitPlan& plan, const KeyProfiles& profiles, const CardContent& content) {
  const auto invalid = [](const std::string& what) { return Status(StatusCode::kInvalidArgument, "pack: " + what); };
  if (kv.tokens == 0) return invalid("there are no tokens to pack");
  if (kv.tokens > kMaxTokens) {
    return {StatusCode::kOutOfRange, fmt::format("a card holds at most {} tokens, not {}", kMaxTokens, kv.tokens)};
  }
  if (kv.layers.empty() || kv.layers.size() > kMaxLayers) return invalid(fmt::format("{} layers", kv.layers.size()));
  if (content.token_ids.size() != kv.tokens || content.positions.size() != kv.tokens) {
    return invalid(fmt::format("{} rows, {} token ids and {} positions must be equal in number", kv.tokens,
                               content.token_ids.size(), content.positions.size()));
  }
  if (content.positions.front() < 0 || content.token_ids[0] < 0)
    return invalid("the first position or token id is negative");
  for (size_t i = 1; i < kv.tokens; ++i) {
    if (content.token_ids[i] < 0) return invalid(fmt::format("the id of token {} is negative", i));
    if (content.positions[i] <= content.positions[i - 1]) return invalid(fmt::format("position {} does not ascend", i));
  }
  for (size_t i = 0; i < kv.layers.size(); ++i) QKV_RETURN_IF_ERROR(CheckShape(kv.layers[i].shape, i));
  if (!ProfilesFit(kv, profiles)) return invalid("the key profiles are of another model or hold values out of range");
  const RopeParams& rope = content.identity.first_rope;
  for (const float x : {rope.base, rope.scale, rope.ext_factor, rope.attn_factor}) {
    if (!std::isfinite(x)) return invalid("a RoPE parameter is not finite");
  }
  if (rope.dims < 0 || rope.dims > kMaxRopeDims || rope.mode < 0 || rope.mode > kMaxRopeMode) {
    return invalid(fmt::format("RoPE of {} dimensions, mode {}", rope.dims, rope.mode));
  }
  QKV_RETURN_IF_ERROR(CheckSegments(content.info.segments, static_cast<uint32_t>(kv.tokens)));
  QKV_RETURN_IF_ERROR(CheckContext(kv, profiles, content));
  return ValidatePlan(plan, kv.tokens, kv.layers.size());
}

Buffer GeometryBytes(const KvView& kv, const BitPlan& plan, const KeyProfiles& profiles, const CardContent& content) {
  Geometry geometry{};
  geometry.tokens = static_cast<uint32_t>(kv.tokens);
  geometry.layers = static_cast<uint32_t>(kv.layers.size());
  geometry.levels = static_cast<uint32_t>(plan.levels.size());
  geometry.position_offset = content.positions.front();
  geometry.tile_tokens = kTileTokens;
  geometry.exact_tokens = static_cast<uint32_t>(std::min(kSinkTokens, kv.tokens));
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
  geometry.average_code_bits = AverageCodeBits(plan, ShapesOf(kv));
  geometry.model_fingerprint = content.identity.model;
  geometry.rope_fingerprint = content.identity.rope;
  geometry.first_token = content.first_token;
  geometry.protected_tokens = content.protected_tokens;
  geometry.profile_kind = static_cast<uint32_t>(profiles.empty() ? ProfileKind::kNone : content.profile.kind);
  geometry.parent = content.parent;
  geometry.profile = content.profile.id;
  Buffer bytes;
  ByteWriter(&bytes).Put(geometry);
  return bytes;
}

Buffer LayersBytes(const KvView& kv, const BitPlan& plan, const CardContent& content) {
  Buffer bytes;
  for (size_t layer = 0; layer < kv.layers.size(); ++layer) {
    const LayerShape& shape = kv.layers[layer].shape;
    LayerEntry entry{};
    entry.kv_heads = shape.kv_heads;
    entry.key_dim = static_cast<uint16_t>(shape.key_dim);
    entry.value_dim = static_cast<uint16_t>(shape.value_dim);
    entry.key_rotation_block = static_cast<uint16_t>(RotationBlock(shape.key_dim));
    entry.value_rotation_block = static_cast<uint16_t>(RotationBlock(shape.value_dim));
    entry.key_adjustment = plan.adjustment(layer).keys;
    entry.value_adjustment = plan.adjustment(layer).values;
    entry.window = content.windows.empty() ? 0 : content.windows[layer];
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

Status PackSection(const KvView& kv, const BitPlan& plan, const TokenOrder& order, const KeyProfiles& profiles,
                   size_t layer, Side side, Buffer* out) {
  const LayerShape& shape = kv.layers[layer].shape;
  const BlockLayout layout = BlockLayout::Make(shape.dim(side), plan.SideBitsOf(layer, side), order.level_size);
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  out->resize(shape.kv_heads * layout.bytes);
  for (uint32_t head = 0; head < shape.kv_heads; ++head) {
    const ChannelProfile none;
    const BlockCodec codec(*kernels, side, shape.dim(side),
                           side == Side::kKeys && !profiles.empty() ? profiles[layer][head] : none);
    const Status status = codec.Pack(kv.head(layer, side, head), order, layout, out->data() + head * layout.bytes);
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
  header.draft = kDraft;
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

Result<PackedCard> PackCard(const KvView& kv, const BitPlan& plan, const KeyProfiles& profiles,
                            const CardContent& content, int threads) {
  QKV_RETURN_IF_ERROR(CheckContent(kv, plan, profiles, content));
  CardInfo info = content.info;
  info.policy = plan.policy;
  std::vector<uint8_t> level_bits;
  for (const Level level : plan.levels) level_bits.insert(level_bits.end(), {level.key_bits, level.value_bits});

  PackedCard card;
  card.sections_ = {GeometryBytes(kv, plan, profiles, content),
                    LayersBytes(kv, plan, content),
                    BytesOf(content.token_ids),
                    BytesOf(content.positions),
                    level_bits,
                    plan.level_of_token,
                    TextBytes(CardInfoToJson(info)),
                    ProfileBytes(profiles),
                    AnchorBytes(content.anchors)};
  if (card.sections_[6].size() > kMaxInfoBytes)
    return Status(StatusCode::kOutOfRange, "pack: names and segments are too long");
  card.sections_.resize(kSingleSections + 2 * kv.layers.size());
  const TokenOrder order = OrderTokens(plan);
  QKV_RETURN_IF_ERROR(ParallelFor(2 * kv.layers.size(), threads, [&](size_t i) {
    const Side side = i < kv.layers.size() ? Side::kKeys : Side::kValues;
    return PackSection(kv, plan, order, profiles, i % kv.layers.size(), side, &card.sections_[kSingleSections + i]);
  }));
  card.head_ = HeadBytes(card.sections_, threads);
  return card;
}

std::vector<ByteSpan> PackedCard::Pieces() const {
  static constexpr std::array<uint8_t, kSectionAlignment> kZeros{};
  std::vector<ByteSpan> pieces = {head_};
  size_t end = head_.size();
  for (const Buffer& section : sections_) {
    const size_t offset = AlignUp(end, kSectionAlignment);
    pieces.emplace_back(kZeros.data(), offset - end);
    pieces.emplace_back(section);
    end = offset + section.size();
  }
  return pieces;
}

size_t PackedCard::file_bytes() const {
  size_t bytes = 0;
  for (const ByteSpan piece : Pieces()) bytes += piece.size();
  return bytes;
}

std::vector<uint8_t> PackedCard::Bytes() const {
  std::vector<uint8_t> bytes;
  for (const ByteSpan piece : Pieces()) bytes.insert(bytes.end(), piece.begin(), piece.end());
  return bytes;
}

Status PackedCard::Write(const std::string& path) const { return WriteFileAtomic(path, Pieces()); }

size_t CardOverheadBytes(const KvView& kv, const CardContent& content) {
  size_t bytes = sizeof(FileHeader) + sizeof(Geometry) + 2 * kMaxLevels + CardInfoToJson(content.info).size() + 64;
  bytes += kv.tokens * (2 * sizeof(int32_t) + 1) + content.anchors.size() * sizeof(AnchorEntry);
  bytes += (kSingleSections + 2 * kv.layers.size()) * (sizeof(SectionEntry) + kSectionAlignment - 1);
  for (const LayerRows& rows : kv.layers) {
    bytes += sizeof(LayerEntry) + 2 * rows.shape.row_values(Side::kKeys) * sizeof(Half);
    bytes += 2 * rows.shape.kv_heads * (kBlockAlignment - 1);
  }
  return bytes;
}

}  // namespace qkvshare
