// How a receiver gets cards' tokens: by attending to them where they lie, or by restoring them into its cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "card/card.h"
#include "qkvshare/status.h"
#include "runtime/card_context.h"
#include "runtime/card_list.h"
#include "runtime/session.h"

namespace qkvshare {

enum class InjectMode : uint8_t {
  kAuto,     // fused where the session allows it, else restore
  kFused,    // attach: attention reads the packed rows (docs/attention.md)
  kRestore,  // dequantize into the session's cache
};

// "auto", "fused", "restore".
const char* InjectModeName(InjectMode mode);
// kInvalidArgument names those that there are.
Result<InjectMode> InjectModeFromName(const std::string& name);

struct Injection {
  InjectMode mode = InjectMode::kRestore;  // in effect: fused or restore
  std::string reason;                      // why this one
  int64_t attach_us = 0;                   // fused
  int64_t dequantize_us = 0;               // restore
  int64_t inject_us = 0;                   // restore: llama_state_seq_set_data
};

// Puts these cards into a sequence that has neither rows nor cards. Errors: CardContext::CheckAttach for kFused,
// CheckRestore and CardContext::SetState for the others, kInvalidArgument where it is not empty; nothing is changed
// then.
Result<Injection> InjectCards(std::span<const CardPart> parts, InjectMode mode, CardContext* context, int sequence);

// Replaces a sequence of the session by these cards' tokens. Errors: those of AttachCards for kFused, those of
// RestoreCards for the others; nothing is changed then.
Result<Injection> InjectCards(std::span<const CardPart> parts, InjectMode mode, Session* session, int sequence = 0);

}  // namespace qkvshare
