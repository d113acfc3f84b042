// CacheCard: a packed KV cache, read from a file or from memory. Checked whole before anything of it is used.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "card/card_info.h"
#include "qkvshare/status.h"
#include "quant/anchor.h"
#include "quant/bit_plan.h"
#include "quant/block.h"
#include "quant/channel_profile.h"
#include "quant/kv_view.h"

namespace qkvshare {

class Card {
 public:
  // Maps the file read-only and checks header, section table, every section's XXH3, and every field against its limits
  // and the others; a file of another user has its digests checked too. Nothing is copied but the small sections.
  // kNotFound, kIo, kCorrupt (the rule that is broken), kUnsupported (a version or codec of later software).
  static Result<Card> Open(const std::string& path);
  // The same over bytes that the card takes, or that outlive it.
  static Result<Card> FromBytes(std::vector<uint8_t> bytes);
  static Result<Card> FromSpan(ByteSpan bytes);

  // Checks every section's BLAKE2b digest and the content id: for a card from outside this machine's user.
  // Cost: about 1 ms a MB.
  Status VerifyDigests() const;

  uint32_t tokens() const { return static_cast<uint32_t>(token_ids_.size()); }
  size_t layers() const { return shapes_.size(); }
  const LayerShape& shape(size_t layer) const { return shapes_[layer]; }
  std::span<const int32_t> token_ids() const { return token_ids_; }
  std::span<const int32_t> positions() const { return positions_; }
  const BitPlan& plan() const { return plan_; }
  const TokenOrder& order() const { return order_; }
  const CardInfo& info() const { return info_; }
  const ModelIdentity& identity() const { return identity_; }
  uint32_t hop() const { return hop_; }
  // A delta card continues another: its tokens follow the first_token() tokens of the parent and the parent's parents.
  bool has_parent() const { return parent_ != Digest{}; }
  const Digest& parent() const { return parent_; }
  uint32_t first_token() const { return first_token_; }
  uint32_t protected_tokens() const { return protected_tokens_; }
  const ProfileSource& profile() const { return profile_; }
  std::span<const Anchor> anchors() const { return anchors_; }
  // Tokens that a query of the layer sees; 0: all.
  uint32_t window(size_t layer) const { return windows_[layer]; }
  uint32_t exact_tokens() const { return exact_tokens_; }
  int32_t position_offset() const { return positions_.front(); }
  // Identifies the content: digest over the section table, which holds each section's digest.
  const Digest& content_id() const { return content_id_; }
  ByteSpan bytes() const { return bytes_; }
  size_t file_bytes() const { return bytes_.size(); }
  // Bytes of all keys and values sections: codes, scales and their alignment.
  size_t payload_bytes() const { return payload_bytes_; }
  double average_code_bits() const { return average_code_bits_; }
  // All bytes of the card, in bits, over all key and value channels of all tokens.
  double average_total_bits() const;
  // Bytes of the same rows as FP16.
  size_t fp16_bytes() const;

  BlockLayout layout(size_t layer, Side side) const;
  // The block of one KV head: layout(layer, side).bytes, aligned to 64 bytes within the card.
  ByteSpan block(size_t layer, Side side, size_t kv_head) const;
  ChannelProfile key_profile(size_t layer, size_t kv_head) const;
  // All of them; empty where the card has none.
  KeyProfiles key_profiles() const;

  // Dequantizes the tokens below `tokens` of one layer and side: out [tokens, kv_heads * dim] FP16.
  Status Unpack(const Kernels& kernels, size_t layer, Side side, size_t tokens, Half* out) const;
  // Of one KV head alone: token i at out + i * stride.
  Status UnpackHead(const Kernels& kernels, size_t layer, Side side, uint32_t kv_head, size_t tokens, Half* out,
                    size_t stride) const;

 private:
  friend class CardReader;
  Card() = default;

  MappedFile file_;
  std::shared_ptr<const std::vector<uint8_t>> owned_;
  ByteSpan bytes_;
  std::vector<ByteSpan> sections_;
  std::vector<Digest> section_digests_;
  ByteSpan section_table_;
  std::vector<LayerShape> shapes_;
  std::vector<size_t> profile_offset_;  // of each layer, in values
  std::vector<int32_t> token_ids_, positions_;
  BitPlan plan_;
  TokenOrder order_;
  CardInfo info_;
  ModelIdentity identity_;
  Digest content_id_{};
  uint32_t hop_ = 0, exact_tokens_ = 0, first_token_ = 0, protected_tokens_ = 0;
  Digest parent_{};
  ProfileSource profile_;
  std::vector<Anchor> anchors_;
  std::vector<uint32_t> windows_;  // of each layer
  size_t payload_bytes_ = 0;
  double average_code_bits_ = 0;
};

// Mean of the plan's code widths over all key and value channels of all layers.
double AverageCodeBits(const BitPlan& plan, std::span<const LayerShape> shapes);

}  // namespace qkvshare
