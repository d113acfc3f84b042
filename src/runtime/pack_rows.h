// Packing rows that lie anywhere: what PackTokens does once it has taken those of a sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "card/card_writer.h"
#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "quant/kv_view.h"
#include "runtime/card_context.h"
#include "runtime/card_list.h"
#include "runtime/sender.h"

namespace qkvshare {

// All is referenced but the list. tokens, positions and kv are of the same tokens.
struct RowsToPack {
  const CardContext& context;  // that they were worked out in
  std::span<const int32_t> tokens;
  KvView kv;  // FP16
  std::span<const int32_t> positions;
  std::vector<CardPart> before;             // cards that hold all tokens of the context before them
  const AttentionWindow* window = nullptr;  // over these tokens; null or empty: there is none
};

// As PackTokens.
Result<PackedCard> PackRows(const RowsToPack& rows, const PackOptions& options, PackTimes* times);

}  // namespace qkvshare
