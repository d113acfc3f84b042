#include "eval/prompt_digest.h"

#include <cstdint>
#include <string>
#include <vector>

namespace qkvshare {
namespace {

void UpdateTokens(const std::vector<int32_t>& tokens, Blake2bHasher* hasher) {
  hasher->UpdateValue(tokens.size());
  for (const int32_t token : tokens) hasher->UpdateValue(token);
}

}  // namespace

Digest PromptDigest(std::span<const EvalPrompt> prompts) {
  Blake2bHasher hasher;
  for (const EvalPrompt& prompt : prompts) {
    hasher.UpdateString(prompt.id);
    UpdateTokens(prompt.context, &hasher);
    hasher.UpdateValue(prompt.segments.size());
    for (const Segment& segment : prompt.segments) {
      hasher.UpdateString(segment.role);
      hasher.UpdateValue(segment.first_token);
      hasher.UpdateValue(segment.tokens);
    }
    hasher.UpdateValue(prompt.continuations.size());
    for (const Continuation& continuation : prompt.continuations) {
      hasher.UpdateString(continuation.id);
      hasher.UpdateString(continuation.kind);
      for (const auto* tokens : {&continuation.instruction, &continuation.turn, &continuation.answer})
        UpdateTokens(*tokens, &hasher);
      hasher.UpdateValue(continuation.roles.size());
      for (const std::string& role : continuation.roles) hasher.UpdateString(role);
    }
  }
  return hasher.Finish();
}

}  // namespace qkvshare
