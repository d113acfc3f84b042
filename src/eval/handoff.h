// One hand-over, measured: the receiver's time to first token and its fidelity by re-prefill, by llama.cpp's own F16
// state and by card, restored and attended to, in one session of one process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "eval/fidelity.h"
#include "eval/stage.h"
#include "qkvshare/status.h"
#include "runtime/generate.h"
#include "runtime/session.h"

namespace qkvshare {

// One way to get from the sender's context to the answer.
struct HandoffArm {
  std::string name;  // "re-prefill", "F16 state", "card restored", "card fused"
  Stages stages;
  size_t cached_tokens = 0;
  size_t evaluated_tokens = 0;
  std::string answer;

  int64_t ttft_us() const;
};

struct HandoffQuestion {
  std::string text;
  std::vector<HandoffArm> arms;
};

struct HandoffReport {
  std::vector<HandoffQuestion> questions;
  size_t state_bytes = 0;  // of the F16 state's file
  Fidelity card;           // restored, against the F16 hand-over
  Fidelity fused;          // the same attended to; no tokens where the session cannot
  Fidelity noise_floor;    // the F16 hand-over against itself, suffix in pieces of 16
};

struct HandoffRequest {
  std::string card_path;
  std::string state_path;              // the sender's F16 state of the same tokens
  std::vector<std::string> questions;  // each the next user's turn
  size_t predict = 48;
  // Runs of each way but re-prefill, interleaved; a stage's time is their median.
  size_t repeats = 3;
  // More turns with answers that are known: they count for the fidelity only.
  std::vector<std::pair<std::string, std::string>> known_answers;
  // Called before each step with its name. May be empty.
  std::function<void(const std::string&)> on_step;
};

// Greedy. The fidelity is measured, teacher-forced, on each question and the F16 hand-over's answer to it, and on the
// known answers.
Result<HandoffReport> MeasureHandoff(Session* session, const HandoffRequest& request);

}  // namespace qkvshare
