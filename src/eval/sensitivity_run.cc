#include "eval/sensitivity_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "eval/fidelity_check.h"
#include "eval/prompt_digest.h"
#include "eval/rank_correlation.h"
#include "eval/result_file.h"
#include "eval/run_facts.h"
#include "runtime/model_weights.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr size_t kOtherDecodes = 3;  // context, FP16, noise floor

class SensitivityRunner {
 public:
  SensitivityRunner(const Model& model, const SensitivityRequest& request) : model_(model), request_(request) {}

  Result<std::vector<SensitivityLine>> Run() {
    QKV_RETURN_IF_ERROR(Check());
    QKV_RETURN_IF_ERROR(MakeSession());
    std::vector<SensitivityLine> lines;
    std::optional<ResultFile> file;
    if (!request_.results.empty()) {
      QKV_ASSIGN_OR_RETURN(const ResultPlan plan, PlanOfResults());
      QKV_ASSIGN_OR_RETURN(ResultFile opened, ResultFile::Open(request_.results, plan));
      file.emplace(std::move(opened));
      for (const Json& line : file->lines()) {
        QKV_ASSIGN_OR_RETURN(lines.emplace_back(), ParseSensitivityLine(line));
      }
    }
    QKV_RETURN_IF_ERROR(Measure(file ? &*file : nullptr, &lines));
    return lines;
  }

 private:
  Status Check() {
    if (request_.tokens == 0) return {StatusCode::kInvalidArgument, "there are no tokens to measure"};
    if (request_.level == kExactLevel) return {StatusCode::kInvalidArgument, "an exact level costs nothing"};
    QKV_RETURN_IF_ERROR(CheckPrompts(request_.prompts));
    for (const EvalPrompt& prompt : request_.prompts) {
      QKV_ASSIGN_OR_RETURN(tokens_.emplace_back(), DrawTokens(prompt, request_.tokens, request_.seed));
      const Continuation& next = prompt.continuations[0];
      longest_ =
          std::max(longest_, prompt.context.size() + next.instruction.size() + next.turn.size() + next.answer.size());
    }
    if (longest_ <= model_.training_context()) return {};
    return {StatusCode::kOutOfRange, fmt::format("a context takes {} tokens with turn and answer, but the model was "
                                                 "trained for {}: use a smaller --context",
                                                 longest_, model_.training_context())};
  }

  Status MakeSession() {
    SessionOptions options = request_.session;
    options.context = ContextFor(model_, longest_);
    options.cache_type_k = options.cache_type_v = CacheType::kF16;
    options.flash_attention = true;  // without it no queries are seen
    options.sequences = 1;
    options.fused = false;
    options.card_tokens = 0;
    QKV_ASSIGN_OR_RETURN(session_, Session::Create(model_, options));
    return {};
  }

  Result<ResultPlan> PlanOfResults() const {
    ResultPlan plan;
    plan.header = {{kSensitivityKind, kVersion},
                   {"input", ToHex(PromptDigest(request_.prompts))},
                   {"prompts", request_.prompts.size()}};
    if (request_.made_by.is_object()) plan.header.update(request_.made_by);
    plan.header.update({{"tokens", request_.tokens},
                        {"token_seed", request_.seed},
                        {"level", LevelName(request_.level)},
                        {"batch", request_.session.batch}});
    plan.header.update(ModelFacts(model_));
    plan.header.update(SessionFacts(*session_));
    QKV_ASSIGN_OR_RETURN(const Json software, SoftwareFacts());
    plan.header.update(software);
    for (size_t i = 0; i < request_.prompts.size(); ++i) {
      plan.group_lines.push_back(request_.tokens);
      for (const size_t token : tokens_[i]) plan.keys.push_back({{"prompt", request_.prompts[i].id}, {"token", token}});
    }
    plan.check = [](const Json& line) { return ParseSensitivityLine(line).status(); };
    return plan;
  }

  Status Measure(ResultFile* file, std::vector<SensitivityLine>* lines) {
    const size_t first = lines->size() / request_.tokens;
    SensitivityProgress progress;
    progress.prompts = request_.prompts.size();
    progress.total = (progress.prompts - first) * (request_.tokens + kOtherDecodes);
    SensitivitySetup setup;
    setup.session = session_.get();
    setup.level = request_.level;
    setup.on_step = [&](const std::string& what) {
      progress.what = what;
      if (request_.on_step) request_.on_step(progress);
      ++progress.done;
    };
    for (progress.prompt = first; progress.prompt < progress.prompts; ++progress.prompt) {
      QKV_ASSIGN_OR_RETURN(const std::vector<SensitivityLine> measured,
                           MeasureSensitivity(setup, request_.prompts[progress.prompt], tokens_[progress.prompt]));
      std::vector<Json> group;
      for (const SensitivityLine& line : measured) group.push_back(SensitivityLineJson(line));
      lines->insert(lines->end(), measured.begin(), measured.end());
      if (file != nullptr) QKV_RETURN_IF_ERROR(file->Append(group));
    }
    return {};
  }

  const Model& model_;
  const SensitivityRequest& request_;
  std::vector<std::vector<size_t>> tokens_;  // [prompts]
  size_t longest_ = 0;
  std::unique_ptr<Session> session_;
};

// Lines of one prompt, one after the other.
std::vector<std::span<const SensitivityLine>> ByPrompt(std::span<const SensitivityLine> lines) {
  std::vector<std::span<const SensitivityLine>> groups;
  for (size_t first = 0, end = 0; first < lines.size(); first = end) {
    while (end < lines.size() && lines[end].prompt == lines[first].prompt) ++end;
    groups.push_back(lines.subspan(first, end - first));
  }
  return groups;
}

template <typename Value>
double MeanRankCorrelation(const std::vector<std::span<const SensitivityLine>>& groups, Value value) {
  double sum = 0;
  for (const std::span<const SensitivityLine> group : groups) {
    std::vector<double> values, kl;
    for (const SensitivityLine& line : group) {
      values.push_back(value(line));
      kl.push_back(line.kl);
    }
    sum += RankCorrelation(values, kl);
  }
  return sum / static_cast<double>(groups.size());
}

}  // namespace

Result<std::vector<SensitivityLine>> RunSensitivity(const Model& model, const SensitivityRequest& request) {
  return SensitivityRunner(model, request).Run();
}

SensitivitySummary SummarizeSensitivity(std::span<const SensitivityLine> lines) {
  const std::vector<std::span<const SensitivityLine>> groups = ByPrompt(lines);
  SensitivitySummary summary;
  summary.tokens = lines.size();
  summary.prompts = groups.size();
  std::vector<double> kl;
  for (const SensitivityLine& line : lines) {
    kl.push_back(line.kl);
    summary.mean_kl += line.kl / static_cast<double>(lines.size());
    summary.above_floor += (line.kl > line.floor ? 1.0 : 0.0) / static_cast<double>(lines.size());
  }
  std::sort(kl.begin(), kl.end());
  summary.median_kl = kl[kl.size() / 2];
  summary.largest_kl = kl.back();
  for (const std::span<const SensitivityLine> group : groups)
    summary.floor += group[0].floor / static_cast<double>(groups.size());
  for (size_t i = 0; i < kControllerInputCount; ++i) {
    summary.rank_correlation.emplace_back(
        ControllerInputName(static_cast<ControllerInput>(i)),
        MeanRankCorrelation(groups, [i](const auto& line) { return line.inputs[i]; }));
  }
  summary.rank_correlation.emplace_back("closed form at the level",
                                        MeanRankCorrelation(groups, [](const auto& line) { return line.level_cost; }));
  return summary;
}

}  // namespace qkvshare
