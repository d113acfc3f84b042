// Generation through llama.cpp's samplers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "qkvshare/status.h"
#include "runtime/session.h"

namespace qkvshare {

// Names and defaults as llama.cpp's. temp <= 0: greedy.
struct SamplingOptions {
  float temp = 0.8f;
  int32_t top_k = 40;
  float top_p = 0.95f;
  float min_p = 0.05f;
  uint32_t seed = 0xFFFFFFFFu;  // random
};

struct GenerateOptions {
  SamplingOptions sampling;
  size_t predict = 128;  // -n: tokens at most
  // Texts that end the answer, none of them empty: generation ends once the text contains one, within a token or across
  // several, and the text is cut before the first of them.
  std::vector<std::string> stop;
  // Marks the line that ends the answer, as "####" does for GSM8K: generation ends with the line break that follows it
  // and something else than space, and the text is cut before that. Empty: none.
  std::string stop_line;
  // Called with the text of each token as it comes; with stop texts, as soon as it is known that none begins there.
  // May be empty.
  std::function<void(const std::string&)> on_text;
};

enum class StopReason { kEndToken, kLength, kContext, kCancelled, kStopText };
// "end", "length", "context", "cancelled", "stop".
const char* StopReasonName(StopReason reason);

struct Generation {
  std::vector<int32_t> tokens;  // sampled, without the end token
  std::string text;             // of the tokens, as far as it counts
  std::string cut;              // the rest of it: from the stop text on
  StopReason stop = StopReason::kLength;
  int32_t end_token = -1;      // the one that stopped it, not in tokens and not decoded
  int64_t first_token_us = 0;  // sampling the first token
  int64_t total_us = 0;

  // What Generate left to be decoded: the end token, or the last one sampled; empty where there is none.
  std::span<const int32_t> rest() const;
};

// Continues after the sequence's last token, which must have been decoded (its logits are there). A sampled token is
// decoded only when another is wanted: afterwards the session holds all tokens but the last one sampled. Cancelling is
// no error: what has been sampled is returned. kInvalidArgument for an empty stop text; kNonFinite where the model's
// logits are not numbers.
Result<Generation> Generate(Session* session, const GenerateOptions& options, int sequence = 0);

struct SequenceOptions {
  int sequence = 0;
  GenerateOptions options;
};

// The same for several sequences, whose last tokens were decoded by one call (Session::DecodeTogether): a token of each
// a call, for as long as any goes on. Each has a sampler of its own and ends for itself; where the context is full the
// last of them end first. What a sequence gets is what it would get alone but for rounding (DecodeTogether). Errors as
// Generate, for all of them; also kInvalidArgument for more sequences than a call has tokens, or one that is there
// twice.
Result<std::vector<Generation>> GenerateMany(Session* session, std::span<const SequenceOptions> wanted);

// Decodes what Generate left: the last token sampled, or the end token. Then the session holds all that was generated.
// kOutOfRange, and nothing is changed, where the context is full.
Status DecodeRest(const Generation& generation, Session* session, int sequence = 0);

}  // namespace qkvshare
