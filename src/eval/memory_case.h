// One case of a measurement of memory: agents that share a context, in a process of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/memory_use.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

// How the agents of a process have the context.
enum class MemoryContent {
  kEmpty,  // not at all: what agents take without it
  kF16,    // llama.cpp's F16 state, from a file
  kCards,  // cards, attached
};
// "empty", "F16", "card".
const char* MemoryContentName(MemoryContent content);

struct MemoryCase {
  std::string model;  // the file
  MemoryContent content = MemoryContent::kEmpty;
  size_t agents = 1;
  // All agents in one context of llama.cpp, a sequence each (F16: that share the context's cells); else each has a
  // context of its own.
  bool one_context = false;
  size_t depth = 0;                // tokens of the context
  std::string state;               // kF16: llama.cpp's file
  std::vector<std::string> cards;  // kCards: files, each before those that continue it
  std::vector<int32_t> tokens;     // that each agent reads after the context
  // What one agent hands on afterwards goes there, a card of `tokens` or a state of all; empty: nothing.
  std::string output;
  double code_bits = 4;    // of that card
  SessionOptions session;  // threads, batch and RoPE count
};

struct MemoryCaseResult {
  size_t model_private_bytes = 0;  // with the model alone
  MemoryUse held;                  // with all agents, after they have read
  size_t peak_private_bytes = 0;   // since the model was there
  size_t output_bytes = 0;
};

nlohmann::ordered_json MemoryCaseJson(const MemoryCase& memory_case);
// kCorrupt where it is none.
Result<MemoryCase> ParseMemoryCase(const nlohmann::ordered_json& json);
nlohmann::ordered_json MemoryCaseResultJson(const MemoryCaseResult& result);
Result<MemoryCaseResult> ParseMemoryCaseResult(const nlohmann::ordered_json& json);

// Runs the case in this process, whose memory counts, and calls on_held while all agents are still there; its error is
// returned. kUnsupported: ReadMemoryUse, cards that cannot be attached; else as what is done.
Status RunMemoryCase(const Model& model, const MemoryCase& memory_case,
                     const std::function<Status(const MemoryCaseResult&)>& on_held);

}  // namespace qkvshare
