// What a card says of itself besides its numbers, and the structs shared by reader and writer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "qkvshare/status.h"

namespace qkvshare {

// An agent that is to use a segment, as the sender knows the topology.
struct SegmentReader {
  std::string agent;
  uint32_t distance = 1;  // hops from the sender: 1 for the next agent

  friend bool operator==(const SegmentReader&, const SegmentReader&) = default;
};

// A run of tokens with one origin.
struct Segment {
  std::string role;    // free text: a message's role, "prompt" or "generated"
  std::string owner;   // the agent that wrote it
  std::string parent;  // content id (hex) of the card it came with, empty where the owner prefilled it
  uint32_t first_token = 0;
  uint32_t tokens = 0;
  std::vector<SegmentReader> readers = {};  // empty: not known

  friend bool operator==(const Segment&, const Segment&) = default;
};

// The first tokens of a card, in the context of another.
struct ContextCard {
  Digest card{};  // content id
  uint32_t tokens = 0;

  friend bool operator==(const ContextCard&, const ContextCard&) = default;
};

struct CardInfo {
  std::string model_name;                  // for people; identity is the fingerprint
  std::string architecture;                // as in the GGUF
  std::string sender;                      // the agent that packed the card
  std::string policy;                      // the bit-allocation policy
  std::string created;                     // UTC, RFC 3339
  std::string writer;                      // "qkvshare 0.1.0"
  std::vector<Segment> segments;           // cover all tokens in order
  std::vector<std::string> features = {};  // what the policy looked at
  std::string cache_type = {};             // of the sender's context: "f16", or "q8_0/q4_0" for keys and values
  std::string rounding = {};               // of keys of 2 and 4 bits: "queries" or "nearest"
  // All that came before the card's own tokens, one after the other from position 0 on. Empty where that is the context
  // of the parent, and the parent.
  std::vector<ContextCard> context = {};

  friend bool operator==(const CardInfo&, const CardInfo&) = default;
};

// Where the channel means and scales come from. Stored value.
enum class ProfileKind : uint32_t {
  kNone = 0,       // there are none
  kMeasured = 1,   // measured on the card's own tokens
  kStatic = 2,     // a static profile of the model, which has an id
  kInherited = 3,  // those of the parent, the very same
};
struct ProfileSource {
  ProfileKind kind = ProfileKind::kMeasured;
  Digest id{};  // of a static profile

  friend bool operator==(const ProfileSource&, const ProfileSource&) = default;
};

// Rotary embedding as a layer's graph applies it.
struct RopeParams {
  int32_t dims = 0;  // 0: no rotary embedding
  int32_t mode = 0;  // GGML_ROPE_TYPE_*
  float base = 0;
  float scale = 0;
  float ext_factor = 0;
  float attn_factor = 0;

  friend bool operator==(const RopeParams&, const RopeParams&) = default;
};

// Whose cache this is. A card may be used only where both fingerprints are equal.
struct ModelIdentity {
  Digest model{};  // architecture, hyper-parameters, tokenizer, weights
  Digest rope{};   // effective RoPE of every layer
  RopeParams first_rope;

  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};

// The segments must cover [0, tokens) without gap or overlap. kCorrupt otherwise.
Status CheckSegments(const std::vector<Segment>& segments, uint32_t tokens);

// Whether what is said of the context, if anything, ends with the parent and has first_token tokens, and the card lies
// where it ends. kCorrupt otherwise.
Status CheckContextCards(const std::vector<ContextCard>& context, const Digest& parent, uint32_t first_token,
                         int32_t position_offset);

// JSON text of the info section, and back. kCorrupt names the field.
std::string CardInfoToJson(const CardInfo& info);
Result<CardInfo> CardInfoFromJson(const std::string& text);

}  // namespace qkvshare
