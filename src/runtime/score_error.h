// How far a card's keys move attention scores: a cheap sign of a card that garbles what it hands over.
#pragma once

#include <cstddef>
#include <cstdint>

#include "card/card.h"
#include "policy/attention_window.h"
#include "qkvshare/status.h"
#include "quant/kv_view.h"
#include "runtime/sender.h"

namespace qkvshare {

// Root mean square over heads, queries and tokens of the error of a score, in nats (a score that is off by 1 has e
// times its weight), soft caps aside. 0: there are no queries.
struct ScoreError {
  double rms = 0;
  size_t worst_layer = 0;
  double worst_rms = 0;  // of that layer
};

// From the first on a card is to be measured before it is trusted; the second no card has that reads well
// (docs/codecs.md, "Keys that few bits garble").
inline constexpr double kSuspectScoreError = 0.4;
inline constexpr double kBadScoreError = 0.7;

// rows: what the card was packed from. window: queries over these tokens. At most kScoredQueries of its last queries
// and kScoredTokens evenly spread tokens are looked at, whether a query sees the token or not. Cost: dequantizing the
// card's keys. Errors: kInvalidArgument as CheckWindow, or where rows and card are not of one shape; kCorrupt.
inline constexpr size_t kScoredQueries = 16;
inline constexpr size_t kScoredTokens = 256;
Result<ScoreError> MeasureScoreError(const KvView& rows, const AttentionWindow& window, const Card& card, int threads);

// Of a card that was packed from the source, which still has the rows.
Result<ScoreError> MeasureScoreError(const PackSource& source, const Card& card);

}  // namespace qkvshare
