// What it costs that documents were prefilled each for itself and then joined as cards, one after the other, instead of
// prefilled together: next-token distributions of questions about them, and of their answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "eval/fidelity.h"
#include "qkvshare/status.h"
#include "runtime/inject.h"
#include "runtime/session.h"

namespace qkvshare {

struct JoinRequest {
  std::vector<std::vector<int32_t>> documents;  // tokens of each, as its own card has them
  std::vector<std::vector<int32_t>> questions;  // each what follows the last one
  double code_bits = 4;                         // of the cards
  size_t predict = 48;                          // tokens of the answer at most
  InjectMode inject = InjectMode::kAuto;        // kFused, kRestore: this way alone; kAuto: both that there are
  // Called before each step with its name. May be empty.
  std::function<void(const std::string&)> on_step;
};

// One way to get the documents into a context, against one prefill of the same tokens. Over all questions.
struct JoinWay {
  std::string name;
  Fidelity questions;  // predictions of their tokens but the first
  Fidelity answers;    // predictions of the tokens that the joint prefill's greedy answers have (teacher forcing)
  std::vector<std::string> texts;  // this way's own greedy answers; empty for the noise floor
};

struct JoinReport {
  std::vector<size_t> card_tokens;   // of each document
  std::vector<size_t> card_bytes;    // at code_bits
  std::vector<std::string> answers;  // of the joint prefill
  // In this order, those with "fused" where cards can be attached:
  // "noise floor": the joint prefill against itself, question and answer token by token.
  // "one card, WAY": the joint prefill packed as one card: what the codec costs.
  // "joined exact, WAY": cards of 16 bits: what prefilling each for itself costs.
  // "joined, WAY": both.
  // "nothing": the question without the documents.
  std::vector<JoinWay> ways;
  // "joined, fused" against "joined, restore": what the two ways differ by. Without a name where there are not both.
  JoinWay between;
};

// kInvalidArgument: no document, an empty one, no question or an empty one; kOutOfRange where they do not fit the
// session, kUnsupported where cards cannot be attached (kFused) or moved; else as Prefill, PackSession and InjectCards.
// The session's sequence 0 is used and left with something.
Result<JoinReport> MeasureJoin(Session* session, const JoinRequest& request);

}  // namespace qkvshare
