// Contexts that measurements start from: prefilled once, and kept in a folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "card/card.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

// Tokens that the contexts which are kept have room for after them; it is part of what they go by.
inline constexpr size_t kKeptRoom = 1024;

// The text's tokens, again and again until there are `count` or more. kInvalidArgument: there is no text.
Result<std::vector<int32_t>> RepeatTokens(const Model& model, const std::string& text, size_t count);

// kOutOfRange where the model was not trained for so many tokens, and the options do not stretch its RoPE. what: of
// which there are too many, for the advice.
Status CheckTrained(const Model& model, const SessionOptions& options, size_t tokens, const std::string& what);

struct KeptContext {
  std::shared_ptr<const Card> exact;  // all of it, in 16 bits
  int64_t prefill_us = 0;             // as it was measured; 0: not known
};

// The context of these tokens, from `folder` if it is kept there; else it is prefilled in the session and kept. Its
// name there goes by the tokens, the options and all else that its rows and the time of its prefill depend on, but for
// the machine. session: an empty one of these options. progress: tokens done and in all; may be empty.
Result<KeptContext> TakeKeptContext(std::span<const int32_t> tokens, const SessionOptions& options,
                                    const std::string& folder, Session* session,
                                    const std::function<void(size_t, size_t)>& progress);

}  // namespace qkvshare
