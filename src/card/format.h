// The CacheCard file, version 1: fixed structs and limits. docs/card_format.md is the specification.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/hash.h"
#include "quant/kv_view.h"

namespace qkvshare::card_format {

inline constexpr std::array<char, 8> kMagic = {'Q', 'K', 'V', 'C', 'A', 'R', 'D', '\n'};
inline constexpr uint32_t kVersion = 1;
inline constexpr size_t kSectionAlignment = 64;

// Limits that a reader checks before it trusts a count.
inline constexpr uint32_t kMaxTokens = 1u << 20;
inline constexpr uint32_t kMaxLayers = 1024;
using qkvshare::kMaxKvHeads;
inline constexpr uint32_t kMaxInfoBytes = 1u << 20;
inline constexpr uint32_t kMaxLevels = 16;
inline constexpr uint32_t kMaxAnchors = 4096;
inline constexpr uint32_t kMaxContextCards = 4096;
inline constexpr int32_t kMaxRopeDims = 4096;
inline constexpr int32_t kMaxRopeMode = 0xFFFF;
inline constexpr uint32_t kMaxHop = 1u << 16;
inline constexpr uint32_t kMaxContextTokens = 1u << 30;  // of a card and all of its parents, and of a layer's window

// Sections stand in this order, one of each; keys and values one a layer. Stored values: never renumbered.
enum class SectionType : uint32_t {
  kGeometry = 1,   // one Geometry
  kLayers = 2,     // one LayerEntry a layer
  kTokens = 3,     // int32 a token: its id
  kPositions = 4,  // int32 a token: ascending, the first is the position offset
  kLevels = 5,     // two bytes a level: bits of keys, bits of values
  kBitMap = 6,     // one byte a token: its level
  kInfo = 7,       // JSON: names, segments, policy
  kProfile = 8,    // FP16: mean and scale of each key channel, or empty
  kAnchors = 9,    // one AnchorEntry an anchor
  kKeys = 10,      // index = layer: one block a KV head
  kValues = 11,    // index = layer
};
inline constexpr uint32_t kSingleSections = 9;

struct FileHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t header_bytes;  // sizeof(FileHeader)
  uint32_t section_count;
  uint32_t section_entry_bytes;  // sizeof(SectionEntry)
  uint64_t file_bytes;
  Digest content_id;  // BLAKE2b-256 of the section table
  std::array<uint8_t, 56> reserved;
  uint64_t checksum;  // XXH3-64 of the header's bytes before this field, then the section table
};
static_assert(sizeof(FileHeader) == 128 && offsetof(FileHeader, checksum) == 120);

struct SectionEntry {
  uint32_t type;
  uint32_t index;   // layer of keys and values, else 0
  uint64_t offset;  // from the start of the file, multiple of kSectionAlignment
  uint64_t bytes;
  uint64_t checksum;  // XXH3-64 of the section's bytes
  Digest digest;      // BLAKE2b-256 of the section's bytes
};
static_assert(sizeof(SectionEntry) == 64);

// Static mean and scale, Hadamard rotation, one bfloat16 scale a row.
inline constexpr uint8_t kRowCodec = 3;

struct Geometry {
  uint32_t tokens;
  uint32_t layers;
  uint32_t levels;
  int32_t position_offset;
  uint32_t tile_tokens;   // 16
  uint32_t exact_tokens;  // first tokens that are left out of the profile: attention sinks
  uint32_t hop;           // 0 for the first sender
  uint8_t key_codec;      // kRowCodec
  uint8_t value_codec;    // kRowCodec
  uint16_t reserved;
  // RoPE of the first layer, for people and for a later offset; the fingerprint covers every layer.
  int32_t rope_dims;
  int32_t rope_mode;
  float rope_base;
  float rope_scale;
  float rope_ext_factor;
  float rope_attn_factor;
  double average_code_bits;  // over all key and value channels, without scales
  Digest model_fingerprint;
  Digest rope_fingerprint;
  uint32_t first_token;       // tokens of the context that come before, in the parents; 0 without a parent
  uint32_t protected_tokens;  // last tokens that were kept exact
  uint32_t profile_kind;      // ProfileKind
  uint32_t reserved_2;
  Digest parent;   // content id of the card before, or zeros
  Digest profile;  // id of the static profile, or zeros
  std::array<uint8_t, 48> reserved_3;
};
static_assert(sizeof(Geometry) == 256 && offsetof(Geometry, average_code_bits) == 56 &&
              offsetof(Geometry, first_token) == 128 && offsetof(Geometry, profile) == 176);

struct LayerEntry {
  uint32_t kv_heads;
  uint16_t key_dim;
  uint16_t value_dim;
  uint16_t key_rotation_block;
  uint16_t value_rotation_block;
  int8_t key_adjustment;
  int8_t value_adjustment;
  uint16_t reserved;
  uint32_t window;  // tokens that a query of this layer sees; 0: all
  uint32_t reserved_2;
};
static_assert(sizeof(LayerEntry) == 24);

struct AnchorEntry {
  uint32_t token;
  float weight;
};
static_assert(sizeof(AnchorEntry) == 8);

}  // namespace qkvshare::card_format
