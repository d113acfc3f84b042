#include "eval/fidelity_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "card/card_info.h"

namespace qkvshare {
namespace {

Status InvalidPrompt(const EvalPrompt& prompt, const std::string& what) {
  return {StatusCode::kInvalidArgument, fmt::format("prompt {}: {}", prompt.id, what)};
}

Status CheckContinuation(const EvalPrompt& prompt, const Continuation& continuation) {
  const auto invalid = [&](const std::string& what) {
    return InvalidPrompt(prompt, fmt::format("continuation {}: {}", continuation.id, what));
  };
  if (continuation.turn.empty()) return invalid("its turn has no tokens");
  const size_t scored = continuation.turn.size() + continuation.answer.size();
  if (continuation.instruction.empty() && scored < 2) return invalid("one token has nothing to be predicted by");
  for (const std::string& role : continuation.roles) {
    const bool known = std::any_of(prompt.segments.begin(), prompt.segments.end(),
                                   [&](const Segment& segment) { return segment.role == role; });
    if (!known) return invalid(fmt::format("no segment of the context has the role '{}'", role));
  }
  return {};
}

Status CheckPrompt(const EvalPrompt& prompt) {
  if (prompt.context.empty()) return InvalidPrompt(prompt, "its context has no tokens");
  if (prompt.continuations.empty()) return InvalidPrompt(prompt, "it has no continuation");
  if (!prompt.segments.empty()) {
    const Status covered = CheckSegments(prompt.segments, static_cast<uint32_t>(prompt.context.size()));
    if (!covered.ok()) return InvalidPrompt(prompt, covered.message());
  }
  std::set<std::string> ids;
  for (const Continuation& continuation : prompt.continuations) {
    QKV_RETURN_IF_ERROR(CheckContinuation(prompt, continuation));
    if (!ids.insert(continuation.id).second)
      return InvalidPrompt(prompt, fmt::format("two continuations have the id {}", continuation.id));
  }
  return {};
}

}  // namespace

Status CheckPrompts(std::span<const EvalPrompt> prompts) {
  if (prompts.empty()) return {StatusCode::kInvalidArgument, "there are no prompts"};
  std::set<std::string> ids;
  for (const EvalPrompt& prompt : prompts) {
    QKV_RETURN_IF_ERROR(CheckPrompt(prompt));
    if (!ids.insert(prompt.id).second)
      return {StatusCode::kInvalidArgument, fmt::format("two prompts have the id {}", prompt.id)};
  }
  return {};
}

Status CheckKnows(const FidelityArm& arm, const EvalPrompt& prompt, const Continuation& continuation) {
  if (arm.way != FidelityWay::kCard || !arm.card.NeedsReceiver() || arm.card.oracle) return {};
  const auto missing = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("arm {}, prompt {}, continuation {}: {}", arm.name, prompt.id, continuation.id, what));
  };
  const FeatureSet& features = arm.card.pack.features;
  const bool told = !continuation.instruction.empty(), before = prompt.continuations.size() > 1;
  if (features.Named(Feature::kProbe) && !told) return missing("it has no instruction to probe with");
  if (features.Named(Feature::kAnchors) && !before) return missing("there is no receiver before it for anchors");
  if (features.Named(Feature::kPrior)) return {};
  if ((features.Has(Feature::kProbe) && told) || (features.Has(Feature::kAnchors) && before) ||
      (features.Has(Feature::kPrior) && !continuation.roles.empty())) {
    return {};
  }
  return missing("nothing is known of the receiver that the policy looks at, so that it would be local; leave it out");
}

}  // namespace qkvshare
