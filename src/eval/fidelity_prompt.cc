#include "eval/fidelity_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "eval/cache_round_trip.h"
#include "eval/fidelity.h"
#include "eval/fidelity_values.h"
#include "eval/policy_seed.h"
#include "eval/receiver_facts.h"
#include "eval/rounded.h"
#include "runtime/generate.h"
#include "runtime/probe_queries.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

constexpr const char* kSender = "sender";

// What a receiver reads and says.
struct Turn {
  const Continuation* of = nullptr;
  std::vector<int32_t> tokens;  // instruction, turn and answer
  size_t answer_tokens = 0;

  size_t first() const { return std::max<size_t>(of->instruction.size(), 1) - 1; }  // that predicts what is scored
  std::span<const int32_t> next() const { return std::span(tokens).subspan(first() + 1); }
  size_t own() const { return tokens.size() - of->instruction.size(); }
};

class PromptFidelity {
 public:
  PromptFidelity(const FidelitySetup& setup, const EvalPrompt& prompt)
      : setup_(setup), session_(*setup.session), prompt_(prompt), ways_(setup.arms.size()) {}

  Result<std::vector<FidelityResult>> Run() {
    QKV_RETURN_IF_ERROR(ReadContext());
    QKV_RETURN_IF_ERROR(PackAlike());
    QKV_RETURN_IF_ERROR(FillCaches());
    QKV_RETURN_IF_ERROR(CompleteTurns());
    if (UsesAnchors()) QKV_RETURN_IF_ERROR(RunReference(turns_.back()).status());
    for (const Turn& turn : turns_) {
      QKV_RETURN_IF_ERROR(PackForReceiver(turn));  // with anchors of the one before
      QKV_ASSIGN_OR_RETURN(LogitRows rows, RunReference(turn));
      const ReferenceRows reference(std::move(rows), turn.first(), session_.threads());
      for (size_t arm = 0; arm < setup_.arms.size(); ++arm) QKV_RETURN_IF_ERROR(Measure(turn, reference, arm));
    }
    return std::move(results_);
  }

 private:
  // What an arm hands over.
  struct Way {
    std::shared_ptr<const Card> card;
    std::vector<uint8_t> state;
  };

  template <typename Test>
  bool AnyCard(Test test) const {
    return std::any_of(setup_.arms.begin(), setup_.arms.end(),
                       [&](const FidelityArm& arm) { return arm.way == FidelityWay::kCard && test(arm.card); });
  }
  bool UsesAnchors() const {
    return turns_.size() > 1 && AnyCard([](const CardArm& card) { return card.Uses(Feature::kAnchors); });
  }
  void Step(const std::string& what, size_t tokens) const {
    if (setup_.on_decoded) setup_.on_decoded(what, tokens);
  }
  std::function<void(size_t, size_t)> Progress(const std::string& what) const {
    return [this, what, before = size_t{0}](size_t done, size_t) mutable {
      Step(what, done - before);
      before = done;
    };
  }
  // The context in FP16, and the sender's queries.
  Status Restore() {
    QKV_RETURN_IF_ERROR(session_.RestoreState(state_, prompt_.context));
    session_.SetWindow(window_, 0);
    return {};
  }

  Status ReadContext();
  Status PackAlike();
  Status FillCaches();
  Status CompleteTurns();
  Status PackForReceiver(const Turn& turn);
  Status Pack(const FidelityArm& arm, PackOptions options, Way* way) const;
  Result<LogitRows> RunReference(const Turn& turn);
  Result<LogitRows> Score(const Turn& turn, size_t arm);
  Status Measure(const Turn& turn, const ReferenceRows& reference, size_t arm);
  void CountBits(size_t arm, FidelityResult* result) const;

  const FidelitySetup& setup_;
  Session& session_;
  const EvalPrompt& prompt_;
  std::vector<uint8_t> state_;  // FP16, of the context
  AttentionWindow window_;      // of the context's end
  std::vector<TokenPrediction> predictions_;
  std::vector<Way> ways_;  // [arms]
  std::vector<Turn> turns_;
  ReceiverFacts facts_;
  std::vector<FidelityResult> results_;
};

Status PromptFidelity::ReadContext() {
  session_.Clear();
  PrefillOptions prefill;
  KeepForPacking(session_, &prefill);
  prefill.progress = Progress("context");
  PredictionMeter meter(session_.model(), prompt_.context);
  const bool predicts = AnyCard([](const CardArm& card) { return card.pack.features.NeedsPredictions(); });
  if (predicts) prefill.logits = [&](size_t token, const float* logits) { meter.Add(token, logits); };
  QKV_RETURN_IF_ERROR(session_.Prefill(prompt_.context, prefill));
  if (predicts) predictions_ = meter.Take();
  window_ = session_.window();
  QKV_ASSIGN_OR_RETURN(state_, session_.SaveState());
  return {};
}

Status PromptFidelity::Pack(const FidelityArm& arm, PackOptions options, Way* way) const {
  options.sender = kSender;
  if (options.segments.empty()) options.segments = prompt_.segments;
  if (options.features.NeedsPredictions()) options.predictions = predictions_;
  PackTimes times;
  const Result<PackedCard> packed = PackSession(session_, options, &times);
  if (!packed) return {packed.status().code(), fmt::format("arm {}: {}", arm.name, packed.status().message())};
  QKV_ASSIGN_OR_RETURN(Card card, Card::FromBytes(packed->Bytes()));
  way->card = std::make_shared<const Card>(std::move(card));
  return {};
}

// What is the same for every continuation. The session holds the context.
Status PromptFidelity::PackAlike() {
  for (size_t i = 0; i < ways_.size(); ++i) {
    const FidelityArm& arm = setup_.arms[i];
    if (arm.way == FidelityWay::kCard && !arm.card.NeedsReceiver()) {
      Step(arm.name, 0);
      PackOptions options = arm.card.pack;
      options.policy_seed = PolicySeedFor(options.policy_seed, std::array{prompt_.id});
      QKV_RETURN_IF_ERROR(Pack(arm, options, &ways_[i]));
    } else if (arm.way == FidelityWay::kRoundTrip) {
      Step(arm.name, 0);
      QKV_ASSIGN_OR_RETURN(const KvState rows, session_.TakeKv());
      QKV_ASSIGN_OR_RETURN(ways_[i].state,
                           RoundTripState(rows.view(), setup_.formats[i], session_.state_layout(), session_.threads()));
    }
  }
  return {};
}

Status PromptFidelity::FillCaches() {
  for (size_t i = 0; i < ways_.size(); ++i) {
    Session* cache = setup_.caches[i].get();
    if (cache == nullptr) continue;
    cache->Clear();
    PrefillOptions prefill;
    prefill.progress = Progress(setup_.arms[i].name);
    QKV_RETURN_IF_ERROR(cache->Prefill(prompt_.context, prefill));
  }
  return {};
}

// Gives each continuation an answer: where it has none, the greedy one of the FP16 hand-over with its end token.
Status PromptFidelity::CompleteTurns() {
  for (const Continuation& continuation : prompt_.continuations) {
    Turn& turn = turns_.emplace_back();
    turn.of = &continuation;
    turn.tokens = continuation.instruction;
    turn.tokens.insert(turn.tokens.end(), continuation.turn.begin(), continuation.turn.end());
    std::vector<int32_t> answer = continuation.answer;
    if (answer.empty()) {
      QKV_RETURN_IF_ERROR(Restore());
      QKV_RETURN_IF_ERROR(session_.Prefill(turn.tokens, {}));
      GenerateOptions options;
      options.sampling.temp = 0;
      options.predict = setup_.predict;
      QKV_ASSIGN_OR_RETURN(const Generation generation, Generate(&session_, options));
      if (generation.stop == StopReason::kCancelled) return {StatusCode::kCancelled, "cancelled"};
      answer = generation.tokens;
      if (generation.end_token >= 0) answer.push_back(generation.end_token);
      Step("answer", turn.tokens.size() + answer.size());
    }
    turn.answer_tokens = answer.size();
    turn.tokens.insert(turn.tokens.end(), answer.begin(), answer.end());
  }
  return {};
}

Status PromptFidelity::PackForReceiver(const Turn& turn) {
  if (!AnyCard([](const CardArm& card) { return card.NeedsReceiver(); })) return {};
  QKV_RETURN_IF_ERROR(Restore());
  facts_.probe = {};
  const std::vector<int32_t>& instruction = turn.of->instruction;
  if (!instruction.empty() && AnyCard([](const CardArm& card) { return card.Uses(Feature::kProbe); })) {
    Step("probe", instruction.size());
    QKV_ASSIGN_OR_RETURN(facts_.probe, ProbeWindow(&session_, {&instruction, 1}));
  }
  for (const bool of_turn : {false, true}) {
    if (!AnyCard([&](const CardArm& card) { return card.oracle && card.oracle_of_turn == of_turn; })) continue;
    // The last token of a turn predicts the first one of the answer.
    const size_t end = of_turn ? turn.tokens.size() - turn.answer_tokens + 1 : turn.tokens.size();
    Step("oracle", end);
    QKV_ASSIGN_OR_RETURN((of_turn ? facts_.oracle_of_turn : facts_.oracle),
                         FindOracleQueries(&session_, std::span(turn.tokens).first(end), turn.first()));
    session_.SetWindow(window_, 0);
  }
  for (size_t i = 0; i < ways_.size(); ++i) {
    const FidelityArm& arm = setup_.arms[i];
    if (arm.way != FidelityWay::kCard || !arm.card.NeedsReceiver()) continue;
    Step(arm.name, 0);
    QKV_ASSIGN_OR_RETURN(const PackOptions options, PackOptionsFor(arm.card, prompt_, *turn.of, kSender, facts_));
    QKV_RETURN_IF_ERROR(Pack(arm, options, &ways_[i]));
  }
  return {};
}

// The FP16 hand-over. Leaves anchors of this receiver for the next, if there is one that wants them.
Result<LogitRows> PromptFidelity::RunReference(const Turn& turn) {
  QKV_RETURN_IF_ERROR(Restore());
  Step("F16", turn.tokens.size());
  if (!UsesAnchors()) return ScoreTokens(&session_, turn.tokens, 0);
  QKV_ASSIGN_OR_RETURN(ScoredWithAnchors scored, ScoreWithAnchors(&session_, turn.tokens, turn.own()));
  facts_.anchors = std::move(scored.anchors);
  return std::move(scored.rows);
}

// The continuation after the context as the arm has it.
Result<LogitRows> PromptFidelity::Score(const Turn& turn, size_t arm) {
  switch (setup_.arms[arm].way) {
    case FidelityWay::kCard: {
      const CardPart part{ways_[arm].card, 0, ways_[arm].card->tokens()};
      QKV_RETURN_IF_ERROR(InjectCards({&part, 1}, setup_.arms[arm].card.inject, &session_).status());
      break;
    }
    case FidelityWay::kRoundTrip: QKV_RETURN_IF_ERROR(session_.SetState(ways_[arm].state, prompt_.context)); break;
    case FidelityWay::kCache: {
      Session& cache = *setup_.caches[arm];
      QKV_RETURN_IF_ERROR(cache.Truncate(prompt_.context.size()));
      return ScoreTokens(&cache, turn.tokens, 0);
    }
    case FidelityWay::kFloor: QKV_RETURN_IF_ERROR(Restore()); return ScoreTokens(&session_, turn.tokens, kNoisePiece);
  }
  return ScoreTokens(&session_, turn.tokens, 0);
}

Status PromptFidelity::Measure(const Turn& turn, const ReferenceRows& reference, size_t arm) {
  Step(setup_.arms[arm].name, turn.tokens.size());
  QKV_ASSIGN_OR_RETURN(const LogitRows rows, Score(turn, arm));
  FidelityResult& result = results_.emplace_back();
  FidelityLine& line = result.line;
  line.prompt = prompt_.id;
  line.continuation = turn.of->id;
  line.kind = turn.of->kind;
  line.arm = setup_.arms[arm].name;
  // Without instruction and turn before it, the first token of an answer is not scored.
  QKV_RETURN_IF_ERROR(
      SetPredictions(reference.Compare(rows, turn.next(), session_.threads()), turn.answer_tokens, &line));
  CountBits(arm, &result);
  return {};
}

void PromptFidelity::CountBits(size_t arm, FidelityResult* result) const {
  FidelityLine& line = result->line;
  result->tokens = prompt_.context.size();
  if (const Card* card = ways_[arm].card.get(); card != nullptr) {
    line.bytes = card->file_bytes();
    line.code_bits = Rounded(card->average_code_bits());
    line.total_bits = Rounded(card->average_total_bits());
    result->features = card->info().features;
    if (setup_.with_map && line.continuation == prompt_.continuations.front().id)
      result->map = ReadTurnTokens(*card, [&](int32_t token) { return session_.model().Detokenize({token}); });
    return;
  }
  const FidelityArm& types = setup_.arms[arm];  // F16 of the floor
  const CacheSize size = SizeInCache(session_.state_layout().shapes, types.keys, types.values, result->tokens);
  line.bytes = size.bytes;
  line.code_bits = Rounded(size.code_bits);
  line.total_bits = Rounded(size.total_bits);
}

}  // namespace

Result<std::vector<FidelityResult>> MeasurePrompt(const FidelitySetup& setup, const EvalPrompt& prompt) {
  return PromptFidelity(setup, prompt).Run();
}

}  // namespace qkvshare
