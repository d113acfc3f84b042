// Opening a card: every rule of docs/card_format.md that a reader checks, in the order listed there. The rule's number
// stands in front of each check.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "card/card.h"
#include "card/format.h"

namespace qkvshare {

using namespace card_format;  // NOLINT(google-build-using-namespace): this file is the format

class CardReader {
 public:
  explicit CardReader(Card* card) : card_(*card) {}

  Status Read() {
    QKV_RETURN_IF_ERROR(ReadHeader());
    QKV_RETURN_IF_ERROR(ReadSectionTable());
    QKV_RETURN_IF_ERROR(ReadGeometry());
    QKV_RETURN_IF_ERROR(ReadLayers());
    QKV_RETURN_IF_ERROR(ReadTokens());
    QKV_RETURN_IF_ERROR(ReadPlan());
    QKV_RETURN_IF_ERROR(ReadInfo());
    QKV_RETURN_IF_ERROR(ReadProfile());
    QKV_RETURN_IF_ERROR(ReadAnchors());
    return CheckPayload();
  }

 private:
  static Status Corrupt(int rule, const std::string& what) {
    return {StatusCode::kCorrupt, fmt::format("not a valid card (rule {}): {}", rule, what)};
  }

  ByteSpan Section(SectionType type) const { return card_.sections_[static_cast<size_t>(type) - 1]; }

  // The section as values; its size must be that of `count` values.
  template <typename T>
  Status ReadValues(SectionType type, int rule, const char* name, size_t count, std::vector<T>* out) const {
    const ByteSpan section = Section(type);
    if (section.size() != count * sizeof(T)) {
      return Corrupt(rule, fmt::format("{} section has {} bytes, not {}", name, section.size(), count * sizeof(T)));
    }
    out->resize(count);
    if (count > 0) std::memcpy(out->data(), section.data(), section.size());
    return {};
  }

  Status ReadHeader() {
    const ByteSpan bytes = card_.bytes_;
    if (bytes.size() < sizeof header_) return Corrupt(1, fmt::format("{} bytes are fewer than a header", bytes.size()));
    std::memcpy(&header_, bytes.data(), sizeof header_);
    if (header_.magic != kMagic) return Corrupt(2, "wrong magic; is this a CacheCard?");
    if (header_.version != kVersion) {
      return {StatusCode::kUnsupported,
              fmt::format(
                  "card version {} is not supported (rule 3; this software reads version {}): use the software that "
                  "wrote it or pack again",
                  header_.version, kVersion)};
    }
    if (header_.header_bytes != sizeof(FileHeader)) return Corrupt(4, "wrong header size");
    if (header_.section_entry_bytes != sizeof(SectionEntry)) return Corrupt(5, "wrong section entry size");
    if (header_.section_count <= kSingleSections || header_.section_count > kSingleSections + 2 * kMaxLayers) {
      return Corrupt(6, fmt::format("{} sections", header_.section_count));
    }
    const size_t table_bytes = size_t{header_.section_count} * sizeof(SectionEntry);
    if (bytes.size() - sizeof header_ < table_bytes) return Corrupt(6, "the section table is cut off");
    card_.section_table_ = bytes.subspan(sizeof header_, table_bytes);
    if (!std::all_of(header_.reserved.begin(), header_.reserved.end(), [](uint8_t b) { return b == 0; })) {
      return Corrupt(7, "reserved header bytes are not zero");
    }
    std::vector<uint8_t> checked(bytes.begin(), bytes.begin() + offsetof(FileHeader, checksum));
    checked.insert(checked.end(), card_.section_table_.begin(), card_.section_table_.end());
    if (Xxh3(checked) != header_.checksum) return Corrupt(8, "the header's checksum does not match");
    if (header_.file_bytes != bytes.size()) {
      return Corrupt(
          9, fmt::format("the file has {} bytes, not {}: cut off or appended to", bytes.size(), header_.file_bytes));
    }
    card_.content_id_ = header_.content_id;
    return {};
  }

  Status ReadSectionTable() {
    const uint32_t payload_sections = header_.section_count - kSingleSections;
    if (payload_sections % 2 != 0) return Corrupt(6, fmt::format("{} sections", header_.section_count));
    layers_ = payload_sections / 2;
    uint64_t end = sizeof(FileHeader) + card_.section_table_.size();
    for (uint32_t i = 0; i < header_.section_count; ++i) {
      SectionEntry entry;
      std::memcpy(&entry, card_.section_table_.data() + i * sizeof entry, sizeof entry);
      const uint32_t payload = i < kSingleSections ? 0 : i - kSingleSections;
      const uint32_t type = i < kSingleSections ? i + 1 : static_cast<uint32_t>(SectionType::kKeys) + payload / layers_;
      if (entry.type != type || entry.index != (i < kSingleSections ? 0 : payload % layers_)) {
        return Corrupt(10, fmt::format("section {} is of type {}, index {}", i, entry.type, entry.index));
      }
      if (entry.offset != AlignUp(end, kSectionAlignment))
        return Corrupt(11, fmt::format("section {} is not in its place", i));
      if (entry.offset > header_.file_bytes || entry.bytes > header_.file_bytes - entry.offset) {
        return Corrupt(11, fmt::format("section {} runs past the end of the file", i));
      }
      for (uint64_t at = end; at < entry.offset; ++at) {
        if (card_.bytes_[at] != 0) return Corrupt(12, fmt::format("padding before section {} is not zero", i));
      }
      const ByteSpan section = card_.bytes_.subspan(entry.offset, entry.bytes);
      if (Xxh3(section) != entry.checksum)
        return Corrupt(13, fmt::format("the checksum of section {} does not match", i));
      card_.sections_.push_back(section);
      card_.section_digests_.push_back(entry.digest);
      end = entry.offset + entry.bytes;
    }
    if (end != header_.file_bytes) return Corrupt(9, "there are bytes after the last section");
    return {};
  }

  Status ReadGeometry() {
    const ByteSpan section = Section(SectionType::kGeometry);
    if (section.size() != sizeof geometry_) return Corrupt(20, "wrong size of the geometry section");
    std::memcpy(&geometry_, section.data(), sizeof geometry_);
    if (geometry_.tokens == 0 || geometry_.tokens > kMaxTokens)
      return Corrupt(21, fmt::format("{} tokens", geometry_.tokens));
    if (geometry_.layers != layers_)
      return Corrupt(22, fmt::format("{} layers, but sections of {}", geometry_.layers, layers_));
    if (geometry_.levels == 0 || geometry_.levels > kMaxLevels)
      return Corrupt(23, fmt::format("{} levels", geometry_.levels));
    if (geometry_.tile_tokens != kTileTokens)
      return Corrupt(24, fmt::format("tiles of {} tokens", geometry_.tile_tokens));
    if (geometry_.exact_tokens > geometry_.tokens) return Corrupt(25, "more exact tokens than tokens");
    if (geometry_.key_codec != kRowCodec || geometry_.value_codec != kRowCodec) {
      return {StatusCode::kUnsupported,
              fmt::format("card codecs {} and {} are not supported by this software (rule 26)", geometry_.key_codec,
                          geometry_.value_codec)};
    }
    const auto is_zero = [](uint8_t b) { return b == 0; };
    if (geometry_.reserved != 0 || geometry_.reserved_2 != 0 ||
        !std::all_of(geometry_.reserved_3.begin(), geometry_.reserved_3.end(), is_zero)) {
      return Corrupt(27, "reserved geometry bytes are not zero");
    }
    for (const float x :
         {geometry_.rope_base, geometry_.rope_scale, geometry_.rope_ext_factor, geometry_.rope_attn_factor}) {
      if (!std::isfinite(x)) return Corrupt(28, "a RoPE parameter is not finite");
    }
    if (geometry_.rope_dims < 0 || geometry_.rope_dims > kMaxRopeDims || geometry_.rope_mode < 0 ||
        geometry_.rope_mode > kMaxRopeMode) {
      return Corrupt(28, fmt::format("RoPE of {} dimensions, mode {}", geometry_.rope_dims, geometry_.rope_mode));
    }
    QKV_RETURN_IF_ERROR(CheckContext());
    card_.hop_ = geometry_.hop;
    card_.exact_tokens_ = geometry_.exact_tokens;
    card_.first_token_ = geometry_.first_token;
    card_.protected_tokens_ = geometry_.protected_tokens;
    card_.parent_ = geometry_.parent;
    card_.profile_ = {static_cast<ProfileKind>(geometry_.profile_kind), geometry_.profile};
    card_.identity_ = {geometry_.model_fingerprint, geometry_.rope_fingerprint,
                       RopeParams{geometry_.rope_dims, geometry_.rope_mode, geometry_.rope_base, geometry_.rope_scale,
                                  geometry_.rope_ext_factor, geometry_.rope_attn_factor}};
    return {};
  }

  // What came before the card, and where its profile is from.
  Status CheckContext() const {
    if (geometry_.hop > kMaxHop) return Corrupt(29, fmt::format("hop {}", geometry_.hop));
    const bool has_parent = geometry_.parent != Digest{};
    if (has_parent != (geometry_.first_token > 0) || (has_parent && geometry_.hop == 0)) {
      return Corrupt(35, fmt::format("{} parent, first token {}, hop {}", has_parent ? "a" : "no",
                                     geometry_.first_token, geometry_.hop));
    }
    if (geometry_.first_token > kMaxContextTokens - geometry_.tokens) {
      return Corrupt(36, fmt::format("{} tokens come before", geometry_.first_token));
    }
    if (geometry_.protected_tokens > geometry_.tokens) return Corrupt(37, "more protected tokens than tokens");
    const bool is_static = geometry_.profile_kind == static_cast<uint32_t>(ProfileKind::kStatic);
    if (geometry_.profile_kind > static_cast<uint32_t>(ProfileKind::kInherited)) {
      return Corrupt(38, fmt::format("profile kind {}", geometry_.profile_kind));
    }
    if (!has_parent && geometry_.profile_kind == static_cast<uint32_t>(ProfileKind::kInherited)) {
      return Corrupt(38, "an inherited profile, but no parent");
    }
    if (is_static != (geometry_.profile != Digest{})) return Corrupt(38, "a static profile, and no other, has an id");
    return {};
  }

  Status ReadLayers() {
    std::vector<LayerEntry> entries;
    QKV_RETURN_IF_ERROR(ReadValues(SectionType::kLayers, 30, "layers", layers_, &entries));
    for (size_t i = 0; i < entries.size(); ++i) {
      const LayerEntry& entry = entries[i];
      if (entry.kv_heads == 0 || entry.kv_heads > kMaxKvHeads) {
        return Corrupt(31, fmt::format("layer {} has {} KV heads", i, entry.kv_heads));
      }
      if (!IsValidHeadDim(entry.key_dim) || !IsValidHeadDim(entry.value_dim)) {
        return Corrupt(32, fmt::format("layer {} has head sizes {} and {}", i, entry.key_dim, entry.value_dim));
      }
      if (entry.key_rotation_block != RotationBlock(entry.key_dim) ||
          entry.value_rotation_block != RotationBlock(entry.value_dim)) {
        return Corrupt(33, fmt::format("layer {} has rotation blocks {} and {}", i, entry.key_rotation_block,
                                       entry.value_rotation_block));
      }
      if (entry.reserved != 0 || entry.reserved_2 != 0) return Corrupt(34, "reserved layer bytes are not zero");
      if (entry.window > kMaxContextTokens) {
        return Corrupt(39, fmt::format("layer {} has a window of {} tokens", i, entry.window));
      }
      card_.windows_.push_back(entry.window);
      card_.plan_.layers.push_back({entry.key_adjustment, entry.value_adjustment});
      card_.shapes_.push_back({entry.kv_heads, entry.key_dim, entry.value_dim});
    }
    return {};
  }

  Status ReadTokens() {
    QKV_RETURN_IF_ERROR(ReadValues(SectionType::kTokens, 40, "tokens", geometry_.tokens, &card_.token_ids_));
    QKV_RETURN_IF_ERROR(ReadValues(SectionType::kPositions, 41, "positions", geometry_.tokens, &card_.positions_));
    if (std::any_of(card_.token_ids_.begin(), card_.token_ids_.end(), [](int32_t id) { return id < 0; })) {
      return Corrupt(42, "a token id is negative");
    }
    if (card_.positions_.front() < 0 || card_.positions_.front() != geometry_.position_offset) {
      return Corrupt(43, "the first position is not the position offset");
    }
    for (size_t i = 1; i < card_.positions_.size(); ++i) {
      if (card_.positions_[i] <= card_.positions_[i - 1])
        return Corrupt(44, fmt::format("position {} does not ascend", i));
    }
    return {};
  }

  Status ReadPlan() {
    std::vector<uint8_t> bits;
    QKV_RETURN_IF_ERROR(ReadValues(SectionType::kLevels, 50, "levels", 2 * size_t{geometry_.levels}, &bits));
    for (size_t i = 0; i < bits.size(); i += 2) card_.plan_.levels.push_back({bits[i], bits[i + 1]});
    QKV_RETURN_IF_ERROR(ReadValues(SectionType::kBitMap, 51, "bit map", geometry_.tokens, &card_.plan_.level_of_token));
    if (const Status status = ValidatePlan(card_.plan_, geometry_.tokens, layers_); !status.ok())
      return Corrupt(52, status.message());
    card_.order_ = OrderTokens(card_.plan_);
    card_.average_code_bits_ = AverageCodeBits(card_.plan_, card_.shapes_);
    if (!(std::fabs(geometry_.average_code_bits - card_.average_code_bits_) < 1e-6)) {
      return Corrupt(53, fmt::format("average bits are {:.6f}, not {:.6f}", card_.average_code_bits_,
                                     geometry_.average_code_bits));
    }
    return {};
  }

  Status ReadInfo() {
    const ByteSpan section = Section(SectionType::kInfo);
    if (section.size() > kMaxInfoBytes) return Corrupt(60, "the info section is too large");
    Result<CardInfo> info = CardInfoFromJson(std::string(section.begin(), section.end()));
    if (!info) return Corrupt(61, info.status().message());
    card_.info_ = std::move(*info);
    card_.plan_.policy = card_.info_.policy;
    const Status segments = CheckSegments(card_.info_.segments, geometry_.tokens);
    if (!segments.ok()) return Corrupt(62, segments.message());
    const Status context =
        CheckContextCards(card_.info_.context, geometry_.parent, geometry_.first_token, geometry_.position_offset);
    if (!context.ok()) return Corrupt(63, context.message());
    return {};
  }

  Status ReadProfile() {
    const ByteSpan section = Section(SectionType::kProfile);
    size_t values = 0;
    for (const LayerShape& shape : card_.shapes_) {
      card_.profile_offset_.push_back(values);
      values += 2 * shape.row_values(Side::kKeys);
    }
    if (section.empty() != (card_.profile_.kind == ProfileKind::kNone)) {
      return Corrupt(73, "the profile and its kind contradict each other");
    }
    if (section.empty()) return {};
    std::vector<Half> profile;
    QKV_RETURN_IF_ERROR(ReadValues(SectionType::kProfile, 70, "profile", values, &profile));
    for (size_t layer = 0; layer < layers_; ++layer) {
      const size_t dim = card_.shapes_[layer].key_dim;
      for (size_t head = 0; head < card_.shapes_[layer].kv_heads; ++head) {
        const Half* mean = &profile[card_.profile_offset_[layer] + head * 2 * dim];
        const Half* scale = mean + dim;
        if (!std::all_of(mean, mean + dim, IsFiniteHalf)) {
          return Corrupt(71, fmt::format("a mean of layer {} is not finite", layer));
        }
        if (!std::all_of(scale, scale + dim, IsValidChannelScale)) {
          return Corrupt(72,
                         fmt::format("a scale of layer {} is not finite, or below {}", layer, kSmallestChannelScale));
        }
      }
    }
    return {};
  }

  Status ReadAnchors() {
    const ByteSpan section = Section(SectionType::kAnchors);
    const size_t count = section.size() / sizeof(AnchorEntry);
    if (count > kMaxAnchors) return Corrupt(75, fmt::format("{} anchors", count));
    std::vector<AnchorEntry> entries;
    QKV_RETURN_IF_ERROR(ReadValues(SectionType::kAnchors, 75, "anchors", count, &entries));
    for (const AnchorEntry& entry : entries) {
      if (!card_.anchors_.empty() && entry.token <= card_.anchors_.back().token) {
        return Corrupt(76, "anchors do not ascend");
      }
      if (entry.token >= geometry_.first_token + geometry_.tokens) {
        return Corrupt(76, fmt::format("an anchor at token {}, past the end", entry.token));
      }
      const bool is_share = entry.weight > 0 && entry.weight <= 1;  // no NaN
      if (!is_share) return Corrupt(77, "an anchor's weight is not in (0, 1]");
      card_.anchors_.push_back({entry.token, entry.weight});
    }
    return {};
  }

  Status CheckPayload() {
    for (size_t layer = 0; layer < layers_; ++layer) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        const size_t i = kSingleSections + (side == Side::kKeys ? 0 : layers_) + layer;
        const size_t expected = card_.shapes_[layer].kv_heads * card_.layout(layer, side).bytes;
        if (card_.sections_[i].size() != expected) {
          return Corrupt(80, fmt::format("{} of layer {} have {} bytes, not {}", SideName(side), layer,
                                         card_.sections_[i].size(), expected));
        }
        card_.payload_bytes_ += expected;
      }
    }
    return {};
  }

  Card& card_;
  FileHeader header_{};
  Geometry geometry_{};
  size_t layers_ = 0;
};

Result<Card> Card::FromSpan(ByteSpan bytes) {
  Card card;
  card.bytes_ = bytes;
  QKV_RETURN_IF_ERROR(CardReader(&card).Read());
  return card;
}

Result<Card> Card::FromBytes(std::vector<uint8_t> bytes) {
  const auto owned = std::make_shared<const std::vector<uint8_t>>(std::move(bytes));
  QKV_ASSIGN_OR_RETURN(Card card, FromSpan(*owned));
  card.owned_ = owned;
  return card;
}

Result<Card> Card::Open(const std::string& path) {
  QKV_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  Result<Card> card = FromSpan(file.bytes());
  Status status = card.status();
  if (status.ok() && !file.is_own()) status = card->VerifyDigests();
  if (!status.ok()) return Status(status.code(), path + ": " + status.message());
  card->file_ = std::move(file);
  return card;
}

}  // namespace qkvshare
