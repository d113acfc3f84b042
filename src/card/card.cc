#include "card/card.h"

#include <fmt/format.h>

#include <cstring>

#include "card/format.h"

namespace qkvshare {
namespace {

// Key and value channels of one token.
size_t ChannelsPerToken(std::span<const LayerShape> shapes) {
  size_t channels = 0;
  for (const LayerShape& shape : shapes) channels += shape.row_values(Side::kKeys) + shape.row_values(Side::kValues);
  return channels;
}

size_t PayloadSection(size_t layers, size_t layer, Side side) {
  return card_format::kSingleSections + (side == Side::kKeys ? 0 : layers) + layer;
}

}  // namespace

double AverageCodeBits(const BitPlan& plan, std::span<const LayerShape> shapes) {
  std::vector<double> level_bits(plan.levels.size(), 0.0);  // of one token, all layers
  for (size_t layer = 0; layer < shapes.size(); ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const std::vector<int> bits = plan.SideBitsOf(layer, side);
      const auto channels = static_cast<double>(shapes[layer].row_values(side));
      for (size_t i = 0; i < bits.size(); ++i) level_bits[i] += bits[i] * channels;
    }
  }
  double bits = 0;
  for (const uint8_t level : plan.level_of_token) bits += level_bits[level];
  return bits / static_cast<double>(plan.tokens() * ChannelsPerToken(shapes));
}

Status Card::VerifyDigests() const {
  const auto corrupt = [](int rule, const std::string& what) {
    return Status(StatusCode::kCorrupt, fmt::format("not a valid card (rule {}): {}", rule, what));
  };
  if (Blake2b(section_table_) != content_id_) return corrupt(14, "the content id is not that of the section table");
  for (size_t i = 0; i < sections_.size(); ++i) {
    if (Blake2b(sections_[i]) != section_digests_[i]) {
      return corrupt(15, fmt::format("the BLAKE2b digest of section {} does not match", i));
    }
  }
  return {};
}

double Card::average_total_bits() const {
  return 8.0 * static_cast<double>(file_bytes()) / static_cast<double>(tokens() * ChannelsPerToken(shapes_));
}

size_t Card::fp16_bytes() const { return tokens() * ChannelsPerToken(shapes_) * sizeof(Half); }

BlockLayout Card::layout(size_t layer, Side side) const {
  return BlockLayout::Make(shapes_[layer].dim(side), plan_.SideBitsOf(layer, side), order_.level_size);
}

ByteSpan Card::block(size_t layer, Side side, size_t kv_head) const {
  const ByteSpan section = sections_[PayloadSection(layers(), layer, side)];
  const size_t bytes = section.size() / shapes_[layer].kv_heads;
  return section.subspan(kv_head * bytes, bytes);
}

ChannelProfile Card::key_profile(size_t layer, size_t kv_head) const {
  ChannelProfile profile;
  const ByteSpan section = sections_[static_cast<size_t>(card_format::SectionType::kProfile) - 1];
  if (section.empty()) return profile;
  const size_t dim = shapes_[layer].key_dim;
  // Copied as bytes: those of FromSpan may lie at any address.
  const uint8_t* stored = section.data() + (profile_offset_[layer] + kv_head * 2 * dim) * sizeof(Half);
  profile.mean.resize(dim);
  profile.scale.resize(dim);
  std::memcpy(profile.mean.data(), stored, dim * sizeof(Half));
  std::memcpy(profile.scale.data(), stored + dim * sizeof(Half), dim * sizeof(Half));
  return profile;
}

KeyProfiles Card::key_profiles() const {
  KeyProfiles profiles;
  if (profile_.kind == ProfileKind::kNone) return profiles;
  for (size_t layer = 0; layer < layers(); ++layer) {
    std::vector<ChannelProfile>& heads = profiles.emplace_back();
    for (size_t head = 0; head < shapes_[layer].kv_heads; ++head) heads.push_back(key_profile(layer, head));
  }
  return profiles;
}

Status Card::Unpack(const Kernels& kernels, size_t layer, Side side, size_t tokens, Half* out) const {
  const LayerShape& shape = shapes_[layer];
  for (uint32_t head = 0; head < shape.kv_heads; ++head) {
    QKV_RETURN_IF_ERROR(
        UnpackHead(kernels, layer, side, head, tokens, out + head * shape.dim(side), shape.row_values(side)));
  }
  return {};
}

Status Card::UnpackHead(const Kernels& kernels, size_t layer, Side side, uint32_t kv_head, size_t tokens, Half* out,
                        size_t stride) const {
  const ChannelProfile profile = side == Side::kKeys ? key_profile(layer, kv_head) : ChannelProfile{};
  const BlockCodec codec(kernels, side, shapes_[layer].dim(side), profile);
  const Status status =
      codec.Unpack(block(layer, side, kv_head).data(), order_, layout(layer, side), tokens, out, stride);
  if (status.ok()) return {};
  return {status.code(), fmt::format("not a valid card (rule 90): layer {}: {}", layer, status.message())};
}

}  // namespace qkvshare
