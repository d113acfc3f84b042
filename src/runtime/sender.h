// The sender's side of a hand-over: a session's tokens -> bit plan -> card.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "card/card_writer.h"
#include "card/static_profile.h"
#include "policy/policy.h"
#include "qkvshare/status.h"
#include "runtime/card_context.h"
#include "runtime/session.h"

namespace qkvshare {

// A profile that was measured on fewer tokens than this counts for its own card only: docs/agents.md, "Delta cards".
inline constexpr size_t kProfileTokens = 128;

// How keys of 2 and 4 bits are rounded.
enum class KeyRounding {
  kAuto,     // by queries, where there are some
  kQueries,  // so that the queries of the window see least of the errors (policy/key_metrics.h)
  kNearest,  // each channel to the nearest level, as values are
};
// "auto", "queries", "nearest".
const char* KeyRoundingName(KeyRounding rounding);
Result<KeyRounding> KeyRoundingFromName(const std::string& name);

struct PackOptions {
  Policy policy = Policy::kUniform;
  Policy control_of = Policy::kLocal;  // of the policies random and inverted: local, topology or learned
  uint64_t policy_seed = 1;            // of random
  double alpha = kDefaultAlpha;        // of topology: share of the sender's own importance
  FeatureSet features = DefaultFeatures();
  std::shared_ptr<const Controller> controller;  // of learned: UseController (pack_text.h) sets it, and the features
  double code_bits = 4;                          // average over all key and value channels, 2 to 16
  size_t max_bytes = 0;                          // of the whole file; 0: by code_bits
  size_t protected_tokens = 0;                   // last tokens that stay exact
  KeyRounding rounding = KeyRounding::kAuto;
  std::vector<Level> levels;  // that the policy may choose; empty: all of kLevels
  // One a layer, or empty: those of the card that is continued, or else of the profile, if there is one.
  std::vector<LayerAdjustment> layers;
  // Means and scales to pack with; null: measured on the tokens. What follows attached cards is packed with those of
  // the last of them, and takes no other, unless that card measured them on fewer than kProfileTokens tokens.
  std::shared_ptr<const StaticProfile> profile;
  std::string sender;  // agent name
  uint32_t hop = 0;
  bool may_lack_choice = false;   // a budget that leaves the policy no choice is met all the same: all tokens are alike
  std::vector<Segment> segments;  // empty: one segment of role "prompt"
  bool all_readers = false;       // the segments name all readers: one without any is read by nobody
  // What the policy may look at besides the session: how the model predicted each token (PredictionMeter), anchors of
  // earlier receivers of this context (those of attached cards' tokens are passed over), and queries of receivers.
  std::vector<TokenPrediction> predictions;
  std::vector<Anchor> anchors;
  AttentionWindow probe;
  // Rows that the probe's queries see: those to pack, then their own. Null: those to pack alone.
  std::shared_ptr<const KvState> probe_rows;
};

struct PackTimes {
  int64_t take_us = 0;      // rows out of llama.cpp
  int64_t anchors_us = 0;   // what was attended to; where the policy asks too it is part of plan_us
  int64_t plan_us = 0;      // profile, costs, allocation
  int64_t allocate_us = 0;  // of plan_us, the allocation
  int64_t quantize_us = 0;  // and checksums
};

// What packing goes by of the prefill before it: queries of the last tokens, one of so many. All of them tell how keys
// are met; those of the last kCostTokens, at most kCostQueries, what the text's end looks at.
inline constexpr uint32_t kWindowTokens = 1024;
inline constexpr uint32_t kWindowStride = 4;
inline constexpr uint32_t kCostTokens = 128;
inline constexpr size_t kCostQueries = 16;

// Has the prefill keep them, where the session has flash attention.
void KeepForPacking(const Session& session, PrefillOptions* options);

// Makes two numbers of each token's logits, for the features that need them. Set its callback as PrefillOptions::logits
// of the one prefill that decodes all of `tokens`.
class PredictionMeter {
 public:
  explicit PredictionMeter(const Model& model, std::vector<int32_t> tokens);
  void Add(size_t token, const float* logits);
  // Time spent here; that of the model's output layer is part of the prefill.
  int64_t us() const { return us_; }
  std::vector<TokenPrediction> Take() { return std::move(predictions_); }

 private:
  std::vector<int32_t> tokens_;
  size_t vocab_;
  std::vector<TokenPrediction> predictions_;
  std::vector<float> scratch_;
  int64_t us_ = 0;
};

// What can be known to be wrong before there are any tokens. kInvalidArgument: bits out of range, or a policy that
// would have no choice at these bits.
Status CheckPackOptions(const PackOptions& options);

// Checked before the work: kInvalidArgument where something else than a card is at `path`, which a card would replace.
Status CheckReplaceableCard(const std::string& path);

// Rows to pack: those of one sequence of a context, all that come after the cards that are attached to it.
struct PackSource {
  const CardContext& context;
  std::span<const int32_t> tokens;          // that the rows are of
  const AttentionWindow* window = nullptr;  // over these tokens; null or empty: there is none
  int sequence = 0;
};

// Packs them; the context stays as it is. Where cards are attached the result is a delta card that names the last of
// them as its parent, and all of them where they are not what that one was made on; where there is a window, it has
// anchors, of their tokens too, and keys are rounded by its queries; the card says how they were. kInvalidArgument (no
// tokens, bits out of range, a policy but uniform or KeyRounding::kQueries without a window, a policy where the size
// leaves it no choice, a feature that cannot be had, another profile than the parent's), kMismatch (a profile of
// another model), kOutOfRange (max_bytes too small: needed and available), kNonFinite.
Result<PackedCard> PackTokens(const PackSource& source, const PackOptions& options, PackTimes* times);

// The tokens of one sequence of a session.
Result<PackedCard> PackSession(const Session& session, const PackOptions& options, PackTimes* times, int sequence = 0);

// One segment a message, from where the token ids of the rendered conversation grow; one segment in all where the
// template does not render messages one after the other.
std::vector<Segment> SegmentsOf(const Model& model, const std::vector<ChatMessage>& messages,
                                const std::vector<int32_t>& tokens, const std::string& owner);

// What there is of the segments from token `first` on, counted from there.
std::vector<Segment> SegmentsFrom(std::vector<Segment> segments, size_t first);

}  // namespace qkvshare
