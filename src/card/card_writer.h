// Packing KV rows by a bit plan into a CacheCard.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "card/card_info.h"
#include "qkvshare/status.h"
#include "quant/anchor.h"
#include "quant/bit_plan.h"
#include "quant/channel_profile.h"
#include "quant/error_metric.h"
#include "quant/kv_view.h"

namespace qkvshare {

// What goes into a card besides the rows.
struct CardContent {
  std::vector<int32_t> token_ids;  // [tokens]
  std::vector<int32_t> positions;  // [tokens], ascending
  ModelIdentity identity;
  CardInfo info;  // policy is taken from the plan
  uint32_t hop = 0;
  // A delta card: the content id of the card that it continues, and how many tokens of the context come before.
  Digest parent{};
  uint32_t first_token = 0;
  uint32_t exact_tokens = kSinkTokens;  // first tokens that were left out of the profile, as far as there are so many
  uint32_t protected_tokens = 0;        // last tokens that the plan keeps exact
  ProfileSource profile;                // where the key profiles come from
  std::vector<Anchor> anchors;          // ascending by token
  std::vector<uint32_t> windows;        // [layers]: tokens that a query of the layer sees, 0 for all; empty: all 0
};

// A finished card in memory.
class PackedCard {
 public:
  // As card_assembly.h makes them.
  PackedCard(std::vector<uint8_t> head, std::vector<std::vector<uint8_t>> sections)
      : head_(std::move(head)), sections_(std::move(sections)) {}

  size_t file_bytes() const;
  // The whole file in one piece.
  std::vector<uint8_t> Bytes() const;
  // Atomic, mode 0600.
  Status Write(const std::string& path) const;

 private:
  std::vector<ByteSpan> Pieces() const;

  std::vector<uint8_t> head_;  // header and section table
  std::vector<std::vector<uint8_t>> sections_;
};

// Quantizes kv by the plan, keys of 2 and 4 bits in their metrics where there are some. kInvalidArgument where sizes do
// not agree, kNonFinite naming layer and token, kOutOfRange past a limit of the format.
Result<PackedCard> PackCard(const KvView& kv, const BitPlan& plan, const KeyProfiles& profiles,
                            const CardContent& content, int threads, const KeyMetrics& metrics = {});

// Bytes of a card less those that grow with the plan: what a byte budget has to set aside (at most; alignment counted
// in full).
size_t CardOverheadBytes(const KvView& kv, const CardContent& content);

}  // namespace qkvshare
