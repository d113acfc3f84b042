// How much it costs to lower one token's width: labels that a controller is trained on (tools/train_controller.py).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/eval_prompt.h"
#include "policy/controller_inputs.h"
#include "qkvshare/status.h"
#include "quant/bit_plan.h"
#include "runtime/session.h"

namespace qkvshare {

// One token of one prompt: a line of a file of labels.
struct SensitivityLine {
  std::string prompt;
  size_t token = 0;  // of the context
  std::string role;  // of its segment
  std::array<double, kControllerInputCount> inputs{};
  double level_cost = 0;  // C(t) at the level, by which policy local goes: in the unit of input `cost`
  double kl = 0;          // mean KL(FP16 || this token's rows at the level) over the continuation's predictions, nats
  double floor = 0;       // of the same prompt: FP16 against itself, the continuation in pieces of 16
};
nlohmann::ordered_json SensitivityLineJson(const SensitivityLine& line);
// kCorrupt where it is none.
Result<SensitivityLine> ParseSensitivityLine(const nlohmann::ordered_json& json);

struct SensitivitySetup {
  Session* session = nullptr;  // with an F16 cache and flash attention; used by nobody else
  Level level{2, 2};
  // Called before each of the prompt's decodes, with what it is. May be empty.
  std::function<void(const std::string& what)> on_step;
};

// Tokens of the prompt's context to measure, drawn with the seed from those after the sinks; ascending.
// kInvalidArgument where it has fewer.
Result<std::vector<size_t>> DrawTokens(const EvalPrompt& prompt, size_t count, uint64_t seed);

// A line for each of `tokens`, over the prompt's first continuation, whose answer is given. Context: prefilled once, as
// `pack --features full` does. Its rows are quantized with the means and scales of a card of the whole context; for
// each token those of this token are put into the FP16 state, and the continuation is decoded after it. Memory: three
// states of the context and two times the continuation's logits.
//
// kInvalidArgument: no answer, or a continuation of one token; kNonFinite; errors as Prefill; kCancelled.
Result<std::vector<SensitivityLine>> MeasureSensitivity(const SensitivitySetup& setup, const EvalPrompt& prompt,
                                                        const std::vector<size_t>& tokens);

}  // namespace qkvshare
