#include "eval/fidelity_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "eval/cache_round_trip.h"
#include "eval/fidelity_check.h"
#include "eval/fidelity_map.h"
#include "eval/fidelity_prompt.h"
#include "eval/prompt_digest.h"
#include "eval/result_file.h"
#include "eval/run_facts.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 2;

Json ResultJson(const FidelityResult& result) {
  Json json = FidelityLineJson(result.line);
  json["tokens"] = result.tokens;
  if (!result.features.empty()) json["features"] = result.features;
  if (result.map) json["map"] = TokenMapJson(*result.map);
  return json;
}

// For telling how much is left.
size_t DecodedTokens(const FidelitySetup& setup, const EvalPrompt& prompt) {
  const auto caches = static_cast<size_t>(
      std::count_if(setup.caches.begin(), setup.caches.end(), [](const auto& cache) { return cache != nullptr; }));
  size_t tokens = prompt.context.size() * (1 + caches);
  for (const Continuation& continuation : prompt.continuations) {
    const size_t answer = continuation.answer.empty() ? setup.predict : continuation.answer.size();
    const size_t all = continuation.instruction.size() + continuation.turn.size() + answer;
    tokens += all * (1 + setup.arms.size() + (continuation.answer.empty() ? 1 : 0));
  }
  return tokens;
}

class FidelityRunner {
 public:
  FidelityRunner(const Model& model, const FidelityRequest& request)
      : model_(model), request_(request), arms_(request.arms) {}

  Result<std::vector<FidelityLine>> Run() {
    QKV_RETURN_IF_ERROR(CheckFidelityRequest(request_));
    QKV_RETURN_IF_ERROR(MakeSession());
    std::vector<FidelityLine> lines;
    std::optional<ResultFile> file;
    if (!request_.results.empty()) {
      QKV_ASSIGN_OR_RETURN(const ResultPlan plan, PlanOfResults());
      QKV_ASSIGN_OR_RETURN(ResultFile opened, ResultFile::Open(request_.results, plan));
      file.emplace(std::move(opened));
      for (const Json& line : file->lines()) {
        QKV_ASSIGN_OR_RETURN(lines.emplace_back(), ParseFidelityLine(line));
      }
    }
    const size_t first = PromptsIn(lines.size());
    if (first == request_.prompts.size()) return lines;
    QKV_RETURN_IF_ERROR(MakeCaches());
    QKV_RETURN_IF_ERROR(Measure(first, file ? &*file : nullptr, &lines));
    return lines;
  }

 private:
  size_t LinesOf(const EvalPrompt& prompt) const { return prompt.continuations.size() * arms_.size(); }
  // Whole groups.
  size_t PromptsIn(size_t lines) const {
    size_t prompts = 0;
    for (size_t of_prompts = 0; of_prompts < lines; ++prompts) of_prompts += LinesOf(request_.prompts[prompts]);
    return prompts;
  }
  size_t LongestPrompt() const {
    size_t longest = 0;
    for (const EvalPrompt& prompt : request_.prompts) {
      for (const Continuation& c : prompt.continuations) {
        const size_t answer = c.answer.empty() ? request_.predict + 1 : c.answer.size();  // with an end token
        longest = std::max(longest, prompt.context.size() + c.instruction.size() + c.turn.size() + answer);
      }
    }
    return longest;
  }

  Status CheckLength() const {
    const size_t longest = LongestPrompt(), most = model_.training_context();
    if (longest <= most) return {};
    return {StatusCode::kOutOfRange,
            fmt::format("a context takes {} tokens with the longest turn and answer, but the model was trained for {}: "
                        "use a smaller --context, or shorter prompts",
                        longest, most)};
  }

  Status MakeSession() {
    QKV_RETURN_IF_ERROR(CheckLength());
    SessionOptions options = request_.session;
    options.context = ContextFor(model_, LongestPrompt());
    options.cache_type_k = options.cache_type_v = CacheType::kF16;
    options.sequences = 1;
    options.fused = true;
    options.card_tokens = 0;
    QKV_ASSIGN_OR_RETURN(session_, Session::Create(model_, options));
    options_ = options;
    for (FidelityArm& arm : arms_) {
      if (arm.way != FidelityWay::kCard) continue;
      QKV_RETURN_IF_ERROR(FitCardArm(session_->identity(), session_->state_layout().shapes, &arm.card));
      if (arm.card.inject != InjectMode::kFused || session_->fused().ok()) continue;
      return {session_->fused().code(),
              fmt::format("arm {}: {}; add inject=restore to it", arm.name, session_->fused().message())};
    }
    return {};
  }

  // What arms need besides.
  Status MakeCaches() {
    setup_.session = session_.get();
    setup_.arms = arms_;
    setup_.predict = request_.predict;
    setup_.caches.resize(arms_.size());
    setup_.formats.resize(arms_.size());
    for (size_t i = 0; i < arms_.size(); ++i) {
      const FidelityArm& arm = arms_[i];
      if (arm.way == FidelityWay::kRoundTrip) {
        QKV_ASSIGN_OR_RETURN(setup_.formats[i], CacheFormats(model_, options_, arm.keys, arm.values));
      } else if (arm.way == FidelityWay::kCache) {
        SessionOptions options = options_;
        options.cache_type_k = arm.keys;
        options.cache_type_v = arm.values;
        options.fused = false;
        QKV_ASSIGN_OR_RETURN(setup_.caches[i], Session::Create(model_, options));
      }
    }
    return {};
  }

  Result<ResultPlan> PlanOfResults() const {
    ResultPlan plan;
    Json arms = Json::array();
    for (const FidelityArm& arm : arms_) arms.push_back(FidelityArmJson(arm));
    plan.header = {{kFidelityKind, kVersion},
                   {"input", ToHex(PromptDigest(request_.prompts))},
                   {"prompts", request_.prompts.size()}};
    if (request_.made_by.is_object()) plan.header.update(request_.made_by);
    plan.header.update({{"arms", arms}, {"predict", request_.predict}, {"batch", request_.session.batch}});
    plan.header.update(ModelFacts(model_));
    plan.header.update(SessionFacts(*session_));
    QKV_ASSIGN_OR_RETURN(const Json software, SoftwareFacts());
    plan.header.update(software);
    for (const EvalPrompt& prompt : request_.prompts) {
      plan.group_lines.push_back(LinesOf(prompt));
      for (const Continuation& continuation : prompt.continuations) {
        for (const FidelityArm& arm : arms_)
          plan.keys.push_back({{"prompt", prompt.id}, {"continuation", continuation.id}, {"arm", arm.name}});
      }
    }
    plan.check = [](const Json& line) { return ParseFidelityLine(line).status(); };
    return plan;
  }

  Status Measure(size_t first, ResultFile* file, std::vector<FidelityLine>* lines) {
    FidelityProgress progress;
    progress.prompts = request_.prompts.size();
    for (size_t i = first; i < request_.prompts.size(); ++i)
      progress.total += DecodedTokens(setup_, request_.prompts[i]);
    setup_.on_decoded = [&](const std::string& what, size_t tokens) {
      if (request_.on_step) {
        progress.what = what;
        request_.on_step(progress);
      }
      progress.done = std::min(progress.done + tokens, progress.total);
    };
    for (progress.prompt = first; progress.prompt < request_.prompts.size(); ++progress.prompt) {
      setup_.with_map = progress.prompt == 0;
      QKV_ASSIGN_OR_RETURN(const std::vector<FidelityResult> results,
                           MeasurePrompt(setup_, request_.prompts[progress.prompt]));
      std::vector<Json> group;
      for (const FidelityResult& result : results) {
        group.push_back(ResultJson(result));
        lines->push_back(result.line);
      }
      if (file != nullptr) QKV_RETURN_IF_ERROR(file->Append(group));
    }
    return {};
  }

  const Model& model_;
  const FidelityRequest& request_;
  std::vector<FidelityArm> arms_;
  SessionOptions options_;
  std::unique_ptr<Session> session_;
  FidelitySetup setup_;
};

}  // namespace

Status CheckFidelityRequest(const FidelityRequest& request) {
  if (request.arms.empty()) return {StatusCode::kInvalidArgument, "there are no arms to compare"};
  QKV_RETURN_IF_ERROR(CheckPrompts(request.prompts));
  for (const EvalPrompt& prompt : request.prompts) {
    for (const Continuation& continuation : prompt.continuations) {
      for (const FidelityArm& arm : request.arms) QKV_RETURN_IF_ERROR(CheckKnows(arm, prompt, continuation));
    }
  }
  return {};
}

Result<std::vector<FidelityLine>> RunFidelity(const Model& model, const FidelityRequest& request) {
  return FidelityRunner(model, request).Run();
}

}  // namespace qkvshare
