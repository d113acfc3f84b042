// The CacheCard file, version 0 (draft): fixed structs and limits. docs/card_format.md is the specification.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/hash.h"

namespace qkvshare::card_format {

inline constexpr std::array<char, 8> kMagic = {'Q', 'K', 'V', 'C', 'A', 'R', 'D', '\n'};
inline constexpr uint32_t kVersion = 0;
inline constexpr size_t kSectionAlignment = 64;

// Limits that a reader checks before it trusts a count.
inline constexpr uint32_t kMaxTokens = 1u << 20;
inline constexpr uint32_t kMaxLayers = 1024;
inline constexpr uint32_t kMaxKvHeads = 1024;
inline constexpr uint32_t kMaxInfoBytes = 1u << 20;
inline constexpr uint32_t kMaxLevels = 16;

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
  kKeys = 9,       // index = layer: one block a KV head
  kValues = 10,    // index = layer
};
inline constexpr uint32_t kSingleSections = 8;

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

inline constexpr uint8_t kRowCodec = 1;  // static mean and scale, Hadamard rotation, one FP16 scale a row

struct Geometry {
  uint32_t tokens;
  uint32_t layers;
  uint32_t levels;
  int32_t position_offset;
  uint32_t tile_tokens;   // 16
  uint32_t exact_tokens;  // first tokens that are left out of the profile
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
};
static_assert(sizeof(Geometry) == 128 && offsetof(Geometry, average_code_bits) == 56);

struct LayerEntry {
  uint32_t kv_heads;
  uint16_t key_dim;
  uint16_t value_dim;
  uint16_t key_rotation_block;
  uint16_t value_rotation_block;
  uint32_t reserved;
};
static_assert(sizeof(LayerEntry) == 16);

}  // namespace qkvshare::card_format
