#include "eval/handoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "base/stopwatch.h"
#include "card/card.h"
#include "eval/median.h"
#include "runtime/inject.h"
#include "runtime/prompt.h"
#include "runtime/restore.h"

namespace qkvshare {
namespace {

constexpr size_t kMaxStateBytes = size_t{1} << 40;

class HandoffMeasurement {
 public:
  HandoffMeasurement(Session* session, const HandoffRequest& request) : session_(*session), request_(request) {}

  Result<HandoffReport> Run() {
    QKV_ASSIGN_OR_RETURN(const Card card, Card::Open(request_.card_path));
    QKV_RETURN_IF_ERROR(CheckCardFits(card, session_.card_context()));
    sender_tokens_.assign(card.token_ids().begin(), card.token_ids().end());
    HandoffReport report;
    Meters meters;
    for (const std::string& question : request_.questions) {
      QKV_ASSIGN_OR_RETURN(const std::string turn, NextUserTurn(session_.model(), question, ""));
      prompt_ = JoinPrompt(session_.model(), card.token_ids(), turn);
      HandoffQuestion& result = report.questions.emplace_back();
      result.text = question;
      QKV_ASSIGN_OR_RETURN(const std::vector<int32_t> reference_answer, RunArms(&result));
      Step("fidelity");
      QKV_RETURN_IF_ERROR(AddFidelity(reference_answer, &meters));
    }
    for (const auto& [question, answer] : request_.known_answers) {
      Step("fidelity");
      QKV_ASSIGN_OR_RETURN(const std::string turn, NextUserTurn(session_.model(), question, ""));
      prompt_ = JoinPrompt(session_.model(), card.token_ids(), turn);
      QKV_RETURN_IF_ERROR(AddFidelity(session_.model().Tokenize(answer, /*add_special=*/false), &meters));
    }
    report.state_bytes = state_bytes_;
    report.card = meters.card.Result();
    report.fused = meters.fused.Result();
    report.noise_floor = meters.noise.Result();
    return report;
  }

 private:
  // Puts the sender's context into the empty session and adds its stages.
  using Inject = Status (HandoffMeasurement::*)(HandoffArm*);
  static constexpr const char* kStateArm = "F16 state";
  struct Meters {
    FidelityMeter card, fused, noise;
  };

  std::vector<std::pair<std::string, Inject>> Arms() const {
    std::vector<std::pair<std::string, Inject>> arms = {{"re-prefill", &HandoffMeasurement::InjectNothing},
                                                        {kStateArm, &HandoffMeasurement::InjectState},
                                                        {"card restored", &HandoffMeasurement::InjectCard}};
    if (session_.fused().ok()) arms.emplace_back("card fused", &HandoffMeasurement::AttachCard);
    return arms;
  }

  // All arms of one question; returns the answer of the F16 hand-over.
  Result<std::vector<int32_t>> RunArms(HandoffQuestion* result) {
    const std::vector<std::pair<std::string, Inject>> arms = Arms();
    std::vector<std::vector<HandoffArm>> runs(arms.size());
    std::vector<int32_t> reference_answer;
    for (size_t repeat = 0; repeat < std::max<size_t>(request_.repeats, 1); ++repeat) {
      for (size_t i = 0; i < runs.size(); ++i) {
        const auto& [name, inject] = arms[i];
        if (repeat > 0 && inject == &HandoffMeasurement::InjectNothing) continue;  // takes as long as all else together
        Step(name);
        QKV_ASSIGN_OR_RETURN(HandoffArm arm, RunArm(name, inject));
        if (name == kStateArm) reference_answer = answer_;
        runs[i].push_back(std::move(arm));
      }
    }
    for (const std::vector<HandoffArm>& repeats : runs) result->arms.push_back(MedianArm(repeats));
    return reference_answer;
  }

  static HandoffArm MedianArm(const std::vector<HandoffArm>& repeats) {
    HandoffArm median = repeats.front();
    for (size_t stage = 0; stage < median.stages.size(); ++stage) {
      std::vector<int64_t> us;
      for (const HandoffArm& arm : repeats) us.push_back(arm.stages[stage].us);
      median.stages[stage].us = Median(std::move(us));
    }
    return median;
  }

  void Step(const std::string& name) {
    if (request_.on_step) request_.on_step(name);
  }

  Status InjectNothing(HandoffArm*) { return {}; }

  Status InjectState(HandoffArm* arm) {
    Stopwatch watch;
    QKV_ASSIGN_OR_RETURN(const std::string state, ReadText(request_.state_path, kMaxStateBytes));
    state_bytes_ = state.size();
    arm->stages.push_back({"read", watch.LapUs()});
    const ByteSpan bytes(reinterpret_cast<const uint8_t*>(state.data()), state.size());
    if (const Status status = session_.RestoreState(bytes, sender_tokens_); !status.ok()) {
      return {status.code(),
              fmt::format("{} cannot be used as the card's F16 state: {}", request_.state_path, status.message())};
    }
    QKV_RETURN_IF_ERROR(session_.Truncate(prompt_.cached));
    arm->stages.push_back({"inject", watch.LapUs()});
    return {};
  }

  Status InjectCard(HandoffArm* arm) {
    Stopwatch watch;
    QKV_ASSIGN_OR_RETURN(const Card card, Card::Open(request_.card_path));
    arm->stages.push_back({"open and verify", watch.LapUs()});
    RestoreTimes times;
    QKV_RETURN_IF_ERROR(RestoreCard(card, prompt_.cached, &session_, &times));
    arm->stages.push_back({"dequantize", times.dequantize_us});
    arm->stages.push_back({"inject", times.inject_us});
    return {};
  }

  Status AttachCard(HandoffArm* arm) {
    Stopwatch watch;
    QKV_ASSIGN_OR_RETURN(Card card, Card::Open(request_.card_path));
    arm->stages.push_back({"open and verify", watch.LapUs()});
    const CardPart part{std::make_shared<const Card>(std::move(card)), 0, static_cast<uint32_t>(prompt_.cached)};
    QKV_RETURN_IF_ERROR(InjectCards({&part, 1}, InjectMode::kFused, &session_).status());
    arm->stages.push_back({"attach", watch.LapUs()});
    return {};
  }

  Result<HandoffArm> RunArm(const std::string& name, Inject inject) {
    HandoffArm arm;
    arm.name = name;
    session_.Clear();
    QKV_RETURN_IF_ERROR((this->*inject)(&arm));
    arm.cached_tokens = session_.tokens().size();
    arm.evaluated_tokens = prompt_.tokens.size() - arm.cached_tokens;
    Stopwatch watch;
    PrefillOptions prefill;
    prefill.progress = [&](size_t done, size_t total) { Step(fmt::format("{}, {}/{} tokens", name, done, total)); };
    QKV_RETURN_IF_ERROR(session_.Prefill(std::span(prompt_.tokens).subspan(arm.cached_tokens), prefill));
    arm.stages.push_back({arm.cached_tokens > 0 ? "suffix prefill" : "prefill", watch.LapUs()});
    GenerateOptions options;
    options.sampling.temp = 0;
    options.predict = request_.predict;
    QKV_ASSIGN_OR_RETURN(const Generation generation, Generate(&session_, options));
    arm.stages.push_back({"first token", generation.first_token_us});
    arm.answer = generation.text;
    answer_ = generation.tokens;
    return arm;
  }

  Result<LogitRows> Score(Inject inject, const std::vector<int32_t>& tokens, size_t piece) {
    HandoffArm ignored;
    session_.Clear();
    QKV_RETURN_IF_ERROR((this->*inject)(&ignored));
    return ScoreTokens(&session_, tokens, piece);
  }

  Status AddFidelity(const std::vector<int32_t>& answer, Meters* meters) {
    std::vector<int32_t> tokens(prompt_.tokens.begin() + static_cast<ptrdiff_t>(prompt_.cached), prompt_.tokens.end());
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    QKV_ASSIGN_OR_RETURN(const LogitRows reference, Score(&HandoffMeasurement::InjectState, tokens, 0));
    QKV_ASSIGN_OR_RETURN(const LogitRows by_card, Score(&HandoffMeasurement::InjectCard, tokens, 0));
    meters->card.Add(reference, by_card);
    if (session_.fused().ok()) {
      QKV_ASSIGN_OR_RETURN(const LogitRows fused, Score(&HandoffMeasurement::AttachCard, tokens, 0));
      meters->fused.Add(reference, fused);
    }
    QKV_ASSIGN_OR_RETURN(const LogitRows in_pieces, Score(&HandoffMeasurement::InjectState, tokens, kNoisePiece));
    meters->noise.Add(reference, in_pieces);
    return {};
  }

  Session& session_;
  const HandoffRequest& request_;
  std::vector<int32_t> sender_tokens_;
  size_t state_bytes_ = 0;
  JoinedPrompt prompt_;
  std::vector<int32_t> answer_;  // of the arm that ran last
};

}  // namespace

int64_t HandoffArm::ttft_us() const { return TotalUs(stages); }

Result<HandoffReport> MeasureHandoff(Session* session, const HandoffRequest& request) {
  return HandoffMeasurement(session, request).Run();
}

}  // namespace qkvshare
