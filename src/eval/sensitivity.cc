#include "eval/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "card/card.h"
#include "card/card_writer.h"
#include "eval/fidelity.h"
#include "eval/policy_seed.h"
#include "eval/rounded.h"
#include "eval/seeded_random.h"
#include "policy/key_metrics.h"
#include "quant/channel_profile.h"
#include "runtime/kv_state.h"
#include "runtime/restore.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

// Of random numbers, apart from those of prompts.
constexpr uint64_t kTokenStream = uint64_t{3} << 40;

constexpr std::array<ControllerInput, kControllerInputCount> AllInputs() {
  std::array<ControllerInput, kControllerInputCount> inputs{};
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<ControllerInput>(i);
  return inputs;
}

std::string RoleOf(const EvalPrompt& prompt, size_t token) {
  for (const Segment& segment : prompt.segments) {
    if (token >= segment.first_token && token - segment.first_token < segment.tokens) return segment.role;
  }
  return "prompt";
}

class PromptSensitivity {
 public:
  PromptSensitivity(const SensitivitySetup& setup, const EvalPrompt& prompt)
      : setup_(setup), session_(*setup.session), prompt_(prompt) {}

  Result<std::vector<SensitivityLine>> Run(const std::vector<size_t>& tokens) {
    QKV_RETURN_IF_ERROR(JoinContinuation());
    QKV_RETURN_IF_ERROR(ReadContext());
    QKV_RETURN_IF_ERROR(Describe());
    QKV_RETURN_IF_ERROR(QuantizeContext());
    QKV_RETURN_IF_ERROR(session_.SetState(exact_->bytes(), prompt_.context));
    QKV_ASSIGN_OR_RETURN(LogitRows rows, Score("FP16", 0));
    const ReferenceRows reference(std::move(rows), 0, session_.threads());
    QKV_RETURN_IF_ERROR(session_.SetState(exact_->bytes(), prompt_.context));
    QKV_ASSIGN_OR_RETURN(const double floor, MeanKl(reference, "noise floor", kNoisePiece));
    std::vector<SensitivityLine> lines;
    for (const size_t token : tokens) {
      QKV_RETURN_IF_ERROR(LowerToken(token));
      SensitivityLine line = LineOf(token);
      line.floor = Rounded(floor);
      QKV_ASSIGN_OR_RETURN(line.kl, MeanKl(reference, fmt::format("token {}", token), 0));
      line.kl = Rounded(line.kl);
      lines.push_back(std::move(line));
    }
    return lines;
  }

 private:
  Status JoinContinuation() {
    if (prompt_.continuations.empty() || prompt_.continuations[0].answer.empty()) {
      return {StatusCode::kInvalidArgument, fmt::format("prompt {}: its answer is not given", prompt_.id)};
    }
    const Continuation& next = prompt_.continuations[0];
    for (const auto* part : {&next.instruction, &next.turn, &next.answer})
      continuation_.insert(continuation_.end(), part->begin(), part->end());
    if (continuation_.size() > 1) return {};
    return {StatusCode::kInvalidArgument, fmt::format("prompt {}: one token predicts nothing", prompt_.id)};
  }

  Status ReadContext() {
    session_.Clear();
    PrefillOptions prefill;
    KeepForPacking(session_, &prefill);
    PredictionMeter meter(session_.model(), prompt_.context);
    prefill.logits = [&](size_t token, const float* logits) { meter.Add(token, logits); };
    Step("context");
    QKV_RETURN_IF_ERROR(session_.Prefill(prompt_.context, prefill));
    predictions_ = meter.Take();
    QKV_ASSIGN_OR_RETURN(KvState exact, session_.TakeKv());
    exact_.emplace(std::move(exact));
    return {};
  }

  // What a policy could know of each token.
  Status Describe() {
    const KvView kv = exact_->view();
    profiles_ = MeasureKeyProfiles(kv, Sinks(), session_.threads());
    CostOptions options;
    options.spread = true;
    options.threads = session_.threads();
    QKV_ASSIGN_OR_RETURN(metrics_, MeasureKeyMetrics(kv, profiles_, session_.window(), session_.threads()));
    options.metrics = &metrics_;
    const AttentionWindow recent = RecentQueries(session_.window(), kCostTokens, kCostQueries);
    QKV_ASSIGN_OR_RETURN(const MeasuredCosts measured, MeasureTokenCosts(kv, profiles_, recent, options));
    const ControllerFacts facts{measured.attention, measured.costs, kv.tokens, prompt_.context, predictions_};
    QKV_ASSIGN_OR_RETURN(columns_, ControllerColumns(facts, AllInputs()));
    const auto width = [](int bits) {
      return static_cast<size_t>(std::find(kWidths.begin(), kWidths.end(), bits) - kWidths.begin());
    };
    const std::vector<double>& keys = measured.costs.keys[width(setup_.level.key_bits)];
    const std::vector<double>& values = measured.costs.values[width(setup_.level.value_bits)];
    for (size_t t = 0; t < kv.tokens; ++t) level_cost_.push_back((keys[t] + values[t]) / measured.attention.rows);
    return {};
  }

  // Every row but the sinks' at the level: each is quantized by itself, but for means and scales of them all.
  Status QuantizeContext() {
    CardContent content;
    content.token_ids = prompt_.context;
    content.positions = exact_->positions();
    content.identity = session_.identity();
    content.exact_tokens = static_cast<uint32_t>(Sinks());
    content.windows = session_.windows();
    content.info.model_name = session_.model().name();
    content.info.architecture = session_.model().architecture();
    content.info.segments.push_back({"prompt", "", "", 0, static_cast<uint32_t>(prompt_.context.size())});
    BitPlan plan = UniformPlan(prompt_.context.size(), setup_.level, Sinks());
    plan.policy = "uniform";
    QKV_ASSIGN_OR_RETURN(const PackedCard packed,
                         PackCard(exact_->view(), plan, profiles_, content, session_.threads(), metrics_));
    QKV_ASSIGN_OR_RETURN(Card card, Card::FromBytes(packed.Bytes()));
    const CardPart part{std::make_shared<const Card>(std::move(card)), 0,
                        static_cast<uint32_t>(prompt_.context.size())};
    QKV_ASSIGN_OR_RETURN(std::vector<uint8_t> state, BuildCardState({&part, 1}, session_.card_context()));
    QKV_ASSIGN_OR_RETURN(KvState lowered, KvState::Parse(std::move(state), session_.state_layout()));
    lowered_.emplace(std::move(lowered));
    return {};
  }

  // The FP16 context, but for the rows of this token.
  Status LowerToken(size_t token) {
    const KvView exact = exact_->view(), lowered = lowered_->view();
    const FillRows fill = [&](size_t layer, Side side, Half* rows) -> Status {
      const LayerShape& shape = exact.layers[layer].shape;
      const size_t dim = shape.dim(side), row = dim * shape.kv_heads;
      for (uint32_t head = 0; head < shape.kv_heads; ++head) {
        const HeadRows from = exact.head(layer, side, head), instead = lowered.head(layer, side, head);
        for (size_t t = 0; t < exact.tokens; ++t)
          std::memcpy(rows + t * row + head * dim, (t == token ? instead : from).row(t), dim * sizeof(Half));
      }
      return {};
    };
    QKV_ASSIGN_OR_RETURN(const std::vector<uint8_t> state,
                         BuildState(session_.state_layout(), exact_->positions(), session_.threads(), fill));
    return session_.SetState(state, prompt_.context);
  }

  Result<LogitRows> Score(const std::string& what, size_t piece) {
    Step(what);
    return ScoreTokens(&session_, continuation_, piece);
  }

  Result<double> MeanKl(const ReferenceRows& reference, const std::string& what, size_t piece) {
    QKV_ASSIGN_OR_RETURN(const LogitRows rows, Score(what, piece));
    const std::vector<Prediction> predictions =
        reference.Compare(rows, std::span(continuation_).subspan(1), session_.threads());
    const double sum = std::accumulate(predictions.begin(), predictions.end(), 0.0,
                                       [](double total, const Prediction& p) { return total + p.kl; });
    if (std::isfinite(sum)) return sum / static_cast<double>(predictions.size());
    return Status(StatusCode::kNonFinite, fmt::format("prompt {}, {}: a prediction is no number", prompt_.id, what));
  }

  SensitivityLine LineOf(size_t token) const {
    SensitivityLine line;
    line.prompt = prompt_.id;
    line.token = token;
    line.role = RoleOf(prompt_, token);
    for (size_t i = 0; i < columns_.size(); ++i) line.inputs[i] = Rounded(columns_[i][token]);
    line.level_cost = Rounded(level_cost_[token]);
    return line;
  }

  size_t Sinks() const { return SinksOf(0, prompt_.context.size()); }
  void Step(const std::string& what) const {
    if (setup_.on_step) setup_.on_step(what);
  }

  const SensitivitySetup& setup_;
  Session& session_;
  const EvalPrompt& prompt_;
  std::vector<int32_t> continuation_;
  std::vector<TokenPrediction> predictions_;
  std::optional<KvState> exact_, lowered_;
  KeyProfiles profiles_;
  KeyMetrics metrics_;
  std::vector<std::vector<double>> columns_;  // [inputs][tokens]
  std::vector<double> level_cost_;            // [tokens]
};

}  // namespace

Json SensitivityLineJson(const SensitivityLine& line) {
  Json json = {{"prompt", line.prompt}, {"token", line.token}, {"role", line.role}};
  for (size_t i = 0; i < line.inputs.size(); ++i)
    json[ControllerInputName(static_cast<ControllerInput>(i))] = line.inputs[i];
  json.update({{"level_cost", line.level_cost}, {"kl", line.kl}, {"floor", line.floor}});
  return json;
}

Result<SensitivityLine> ParseSensitivityLine(const Json& json) {
  SensitivityLine line;
  try {
    json.at("prompt").get_to(line.prompt);
    json.at("token").get_to(line.token);
    json.at("role").get_to(line.role);
    for (size_t i = 0; i < line.inputs.size(); ++i)
      json.at(ControllerInputName(static_cast<ControllerInput>(i))).get_to(line.inputs[i]);
    json.at("level_cost").get_to(line.level_cost);
    json.at("kl").get_to(line.kl);
    json.at("floor").get_to(line.floor);
  } catch (const nlohmann::json::exception& e) {
    return Status(StatusCode::kCorrupt, e.what());
  }
  return line;
}

Result<std::vector<size_t>> DrawTokens(const EvalPrompt& prompt, size_t count, uint64_t seed) {
  const size_t sinks = SinksOf(0, prompt.context.size());
  std::vector<size_t> tokens(prompt.context.size() - sinks);
  std::iota(tokens.begin(), tokens.end(), sinks);
  if (tokens.size() < count) {
    return Status(StatusCode::kInvalidArgument, fmt::format("prompt {}: its context has {} tokens after the sinks, not "
                                                            "{}; ask for fewer, or for longer contexts",
                                                            prompt.id, tokens.size(), count));
  }
  // By what the prompt is, so that it does not depend on how many prompts there are.
  SeededRandom random(seed, kTokenStream + PolicySeedFor(seed, std::array{prompt.id}));
  random.Shuffle(&tokens);
  tokens.resize(count);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

Result<std::vector<SensitivityLine>> MeasureSensitivity(const SensitivitySetup& setup, const EvalPrompt& prompt,
                                                        const std::vector<size_t>& tokens) {
  return PromptSensitivity(setup, prompt).Run(tokens);
}

}  // namespace qkvshare
