// Memory of agents that share a context: by their number, and hop by hop along a chain; cards against llama.cpp's F16
// states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/memory_case.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

// Names a file of its results.
inline constexpr const char* kMemoryKind = "qkvshare_memory";

// Where agents are: in one process with a context of llama.cpp each, in one such context as its sequences, or in a
// process each; and, for hops, one agent.
inline constexpr const char *kContextsShape = "contexts", *kSequencesShape = "sequences",
                            *kProcessesShape = "processes", *kHopShape = "hop";

// One case: a line of the results.
struct MemoryLine {
  std::string shape;
  std::string content;      // MemoryContentName
  size_t number = 0;        // agents; of kHopShape: the hop, from 1
  size_t tokens = 0;        // of the context that each takes
  size_t taken_bytes = 0;   // of the files that the context is taken from: all agents take the same
  size_t handed_bytes = 0;  // of a hop: what it hands on
  // Of all processes together, with all agents there.
  size_t private_bytes = 0;
  size_t peak_private_bytes = 0;   // the most at a time, from when the model was there (processes: summed)
  size_t model_private_bytes = 0;  // with the model alone
  // Of mapped files, weights and cards: the most that one process has, since all map the same ones.
  size_t shared_bytes = 0;
  size_t proportional_bytes = 0;  // all of it, pages that several of the machine's processes have divided among them
};

// Private memory beside the model's, once all agents are there and at most. Negative where what the model had was given
// back meanwhile.
int64_t HeldOf(const MemoryLine& line);
int64_t PeakOf(const MemoryLine& line);
// What the context takes: HeldOf less that of the same agents without it. Nothing where that line is not there.
std::optional<int64_t> ContextOf(std::span<const MemoryLine> lines, const MemoryLine& line);
// "1.5 MB", "-12.0 kB".
std::string SignedBytes(int64_t bytes);

nlohmann::ordered_json MemoryJson(const MemoryLine& line);
// kCorrupt where it is none.
Result<MemoryLine> ParseMemory(const nlohmann::ordered_json& json);

// Runs a case in each of so many new processes at a time, and returns their results when all have theirs: with
// proportional_bytes of a moment at which all are there.
using RunMemoryCases = std::function<Result<std::vector<MemoryCaseResult>>(const MemoryCase&, size_t processes)>;

struct MemoryRequest {
  std::string text;  // repeated until there are enough tokens
  size_t depth = 2048;
  std::vector<size_t> agents = {1, 2, 4, 8};
  std::vector<size_t> hops = {1, 2, 3, 4, 5};  // that are reported; all up to the last one are run
  size_t suffix = 32;                          // tokens that an agent reads after the context
  size_t hop_tokens = 128;                     // tokens that a hop adds
  double bits = 4;                             // of the cards
  SessionOptions session;                      // threads, batch and RoPE count; `cancel` ends the preparation
  std::string model;                           // the file, for the processes
  std::string folder;   // contexts are kept here, as those of eval speed; the files of the run go with it
  std::string results;  // file that grows group by group, and from which the run goes on; empty: none
  RunMemoryCases run;
  // Called before each step with its name. May be empty.
  std::function<void(const std::string&)> on_step;
};

struct MemoryReport {
  nlohmann::ordered_json header;  // of the file: all that the results follow from
  size_t context_bytes = 0;       // of the context's rows in FP16, as the model's shapes give it
  std::vector<MemoryLine> lines;

  // nullptr where there is none.
  const MemoryLine* Find(const std::string& shape, const std::string& content, size_t number) const;
};

// The model is given away, so that it takes no memory while cases run. Cards are left out where they cannot be
// attached; the header says why.
//
// kUnsupported: the system does not tell memory (all but Linux); kInvalidArgument: no text, numbers out of range or
// twice, as ResultFile::Open; kCancelled, with the groups that are whole kept; else as `run` and what is prepared.
Result<MemoryReport> MeasureAgentMemory(std::unique_ptr<Model> model, const MemoryRequest& request);

}  // namespace qkvshare
