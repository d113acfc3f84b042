// How far a card's keys move attention scores: what tells a card that garbles from one that does not, before anyone
// reads it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "card/card.h"
#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "quant/kv_view.h"
#include "runtime/sender.h"

namespace qkvshare {

// Of the KV head that has the largest: root mean square over queries and tokens of the error of a score, in nats (a
// score that is off by 1 has e times its weight), soft caps aside. 0: there are no queries.
struct ScoreError {
  double rms = 0;
  size_t layer = 0;
  uint32_t kv_head = 0;
};

// From here on what a card hands over is told apart from noise only by measuring: cards of 2 bits of models that work
// with them stay below half of it (docs/codecs.md).
inline constexpr double kGarblingScoreError = 3;

// rows: what the card was packed from. window: queries over these tokens. At most kScoredQueries of its last queries
// and kScoredTokens evenly spread tokens are looked at, whether a query sees the token or not. Cost: dequantizing the
// card's keys. Errors: kInvalidArgument as CheckWindow, or where rows and card are not of one shape; kCorrupt.
inline constexpr size_t kScoredQueries = 16;
inline constexpr size_t kScoredTokens = 256;
Result<ScoreError> WorstScoreError(const KvView& rows, const AttentionWindow& window, const Card& card, int threads);

// Of a card that was packed from the source, which still has the rows.
Result<ScoreError> WorstScoreError(const PackSource& source, const Card& card);

}  // namespace qkvshare
