#include "card/static_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/file.h"
#include "card/format.h"

namespace qkvshare {
namespace {

constexpr std::array<char, 8> kMagic = {'Q', 'K', 'V', 'P', 'R', 'O', 'F', '\n'};
constexpr uint32_t kVersion = 1;

struct Header {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t file_bytes;
  uint64_t tokens;
  uint32_t layers;
  uint32_t reserved;
  Digest model_fingerprint;
  Digest rope_fingerprint;
  std::array<uint8_t, 16> reserved_2;
  uint64_t checksum;  // XXH3-64 of the header's bytes before this field, then all that follows it
};
static_assert(sizeof(Header) == 128 && offsetof(Header, checksum) == 120);

struct Layer {
  uint32_t kv_heads;
  uint16_t key_dim;
  uint16_t value_dim;
  int8_t key_adjustment;
  int8_t value_adjustment;
  std::array<uint8_t, 6> reserved;
};
static_assert(sizeof(Layer) == 16);

Status Corrupt(int rule, const std::string& what) {
  return {StatusCode::kCorrupt, fmt::format("not a valid profile (rule P{}): {}", rule, what)};
}

bool AllZero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
}

bool IsGoodAdjustment(LayerAdjustment adjustment) {
  return std::max(std::abs(adjustment.keys), std::abs(adjustment.values)) <= kMaxAdjustment;
}

uint64_t Checksum(ByteSpan file) {
  std::vector<uint8_t> covered(file.begin(), file.begin() + offsetof(Header, checksum));
  covered.insert(covered.end(), file.begin() + sizeof(Header), file.end());
  return Xxh3(covered);
}

Status CheckHeader(const Header& header, ByteSpan bytes) {
  if (header.magic != kMagic) return Corrupt(2, "wrong magic; is this a profile?");
  if (header.version != kVersion) {
    return {StatusCode::kUnsupported,
            fmt::format("profile version {} is not supported (rule P3): calibrate again", header.version)};
  }
  if (header.header_bytes != sizeof(Header)) return Corrupt(4, "wrong header size");
  if (header.file_bytes != bytes.size()) {
    return Corrupt(5, fmt::format("the file has {} bytes, not {}", bytes.size(), header.file_bytes));
  }
  if (Checksum(bytes) != header.checksum) return Corrupt(6, "the checksum does not match");
  if (header.layers == 0 || header.layers > card_format::kMaxLayers) {
    return Corrupt(7, fmt::format("{} layers", header.layers));
  }
  if (header.reserved != 0 || !AllZero(header.reserved_2)) return Corrupt(8, "reserved bytes are not zero");
  return {};
}

Status ReadLayers(uint32_t count, ByteReader* reader, StaticProfile* profile) {
  if (reader->remaining() < count * sizeof(Layer)) return Corrupt(9, "the layers are cut off");
  for (uint32_t i = 0; i < count; ++i) {
    Layer layer{};
    (void)reader->Get(&layer);
    const LayerShape shape = {layer.kv_heads, layer.key_dim, layer.value_dim};
    if (!IsValidShape(shape)) return Corrupt(10, fmt::format("layer {} has an impossible shape", i));
    const LayerAdjustment adjustment = {layer.key_adjustment, layer.value_adjustment};
    if (!IsGoodAdjustment(adjustment)) return Corrupt(11, fmt::format("layer {} is adjusted too far", i));
    if (!AllZero(layer.reserved)) return Corrupt(8, "reserved bytes are not zero");
    profile->shapes.push_back(shape);
    profile->layers.push_back(adjustment);
  }
  return {};
}

Status ReadChannels(ByteReader* reader, StaticProfile* profile) {
  for (const LayerShape& shape : profile->shapes) {
    std::vector<ChannelProfile>& heads = profile->keys.emplace_back();
    if (reader->remaining() < 2 * shape.row_values(Side::kKeys) * sizeof(Half))
      return Corrupt(12, "channels are cut off");
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {
      ChannelProfile& channels = heads.emplace_back();
      channels.mean.resize(shape.key_dim);
      channels.scale.resize(shape.key_dim);
      for (Half& h : channels.mean) (void)reader->Get(&h);
      for (Half& h : channels.scale) (void)reader->Get(&h);
      if (!IsValidProfile(channels, shape.key_dim)) return Corrupt(13, "a mean or scale is out of range");
    }
  }
  return reader->remaining() == 0 ? Status() : Corrupt(12, fmt::format("{} bytes too many", reader->remaining()));
}

Status CheckParts(const StaticProfile& profile) {
  const auto invalid = [] { return Status(StatusCode::kInvalidArgument, "profile: its parts do not fit each other"); };
  const size_t layers = profile.shapes.size();
  if (layers == 0 || layers > card_format::kMaxLayers || profile.keys.size() != layers ||
      profile.layers.size() != layers) {
    return invalid();
  }
  for (size_t i = 0; i < layers; ++i) {
    const LayerShape& shape = profile.shapes[i];
    if (!IsValidShape(shape) || !IsGoodAdjustment(profile.layers[i]) || profile.keys[i].size() != shape.kv_heads) {
      return invalid();
    }
    for (const ChannelProfile& channels : profile.keys[i]) {
      if (!IsValidProfile(channels, shape.key_dim)) return invalid();
    }
  }
  return {};
}

}  // namespace

Result<std::vector<uint8_t>> StaticProfileBytes(StaticProfile* profile) {
  QKV_RETURN_IF_ERROR(CheckParts(*profile));
  Header header{};
  header.magic = kMagic;
  header.version = kVersion;
  header.header_bytes = sizeof(Header);
  header.tokens = profile->tokens;
  header.layers = static_cast<uint32_t>(profile->shapes.size());
  header.model_fingerprint = profile->identity.model;
  header.rope_fingerprint = profile->identity.rope;
  std::vector<uint8_t> bytes;
  ByteWriter writer(&bytes);
  writer.Put(header);
  for (size_t i = 0; i < profile->shapes.size(); ++i) {
    const LayerShape& shape = profile->shapes[i];
    writer.Put(Layer{shape.kv_heads,
                     static_cast<uint16_t>(shape.key_dim),
                     static_cast<uint16_t>(shape.value_dim),
                     profile->layers[i].keys,
                     profile->layers[i].values,
                     {}});
  }
  for (const auto& heads : profile->keys) {
    for (const ChannelProfile& channels : heads) {
      writer.PutBytes(channels.mean.data(), channels.mean.size() * sizeof(Half));
      writer.PutBytes(channels.scale.data(), channels.scale.size() * sizeof(Half));
    }
  }
  header.file_bytes = bytes.size();
  std::memcpy(bytes.data(), &header, sizeof header);
  header.checksum = Checksum(bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  profile->id = Blake2b(bytes);
  return bytes;
}

Result<StaticProfile> ParseStaticProfile(ByteSpan bytes) {
  ByteReader reader(bytes);
  Header header{};
  if (!reader.Get(&header)) return Corrupt(1, fmt::format("{} bytes are fewer than a header", bytes.size()));
  QKV_RETURN_IF_ERROR(CheckHeader(header, bytes));
  StaticProfile profile;
  profile.identity.model = header.model_fingerprint;
  profile.identity.rope = header.rope_fingerprint;
  profile.tokens = header.tokens;
  QKV_RETURN_IF_ERROR(ReadLayers(header.layers, &reader, &profile));
  QKV_RETURN_IF_ERROR(ReadChannels(&reader, &profile));
  profile.id = Blake2b(bytes);
  return profile;
}

Result<StaticProfile> OpenStaticProfile(const std::string& path) {
  QKV_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  Result<StaticProfile> profile = ParseStaticProfile(file.bytes());
  if (!profile) return Status(profile.status().code(), path + ": " + profile.status().message());
  return profile;
}

Status WriteStaticProfile(const std::string& path, StaticProfile* profile) {
  QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, StaticProfileBytes(profile));
  return WriteFileAtomic(path, {bytes});
}

Status CheckProfileFits(const StaticProfile& profile, const ModelIdentity& identity,
                        const std::vector<LayerShape>& shapes) {
  const auto mismatch = [](const std::string& what) {
    return Status(StatusCode::kMismatch, "the profile is of another " + what + ": calibrate this one");
  };
  if (profile.identity.model != identity.model) return mismatch("model");
  if (profile.identity.rope != identity.rope) return mismatch("RoPE (see --rope-freq-base, --rope-freq-scale and -c)");
  if (profile.shapes != shapes) return mismatch("shape");
  return {};
}

}  // namespace qkvshare
