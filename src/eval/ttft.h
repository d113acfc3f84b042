// Time to first token of a receiver, by what it is handed: text, llama.cpp's files of states, a card; with its stages,
// and those of the sender.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/stage.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/sender.h"
#include "runtime/session.h"

namespace qkvshare {

// Names a file of its results.
inline constexpr const char* kTtftKind = "qkvshare_ttft";

// Ways: what the sender of a card does; and what receivers do, in this order.
inline constexpr const char *kSenderWay = "sender", *kReprefillWay = "re-prefill", *kCardRestoredWay = "card restored",
                            *kCardAttachedWay = "card attached";
// Of llama.cpp's own file of its state of the context, "F16 state", "Q8_0 state", "Q4_0 state".
std::string StateWayOf(CacheType type);

// One way at one depth: a line of the results.
struct TtftLine {
  size_t depth = 0;  // tokens of the context
  std::string way;
  int runs = 0;
  size_t bytes = 0;  // of what is handed over: the text, the file of the state, the card
  Spread total;
  std::vector<StageSpread> stages;  // in order
  // Re-prefill's total over this one's in the same turn, the median. 0 for the sender.
  double speedup = 0;
  std::optional<Spread> write;  // of a state: llama.cpp writes the file, and the disk has it
  int32_t first_token = -1;     // the most likely one after the suffix; -1 for the sender
  // Of a card; else 0.
  double code_bits = 0, total_bits = 0;
};

nlohmann::ordered_json TtftJson(const TtftLine& line);
// kCorrupt where it is none.
Result<TtftLine> ParseTtft(const nlohmann::ordered_json& json);

struct TtftRequest {
  std::string text;  // repeated until there are enough tokens
  std::vector<size_t> depths = {1024, 2048, 4096, 8192};
  size_t suffix = 32;  // tokens that a receiver reads after the context
  int repeats = 5;     // runs of each way
  // No more than three runs of prefilling the context once these have taken so long.
  int64_t prefill_us = 120'000'000;
  PackOptions pack;
  // Adds to `pack` what goes by the tokens of the context: segments, anchors. May be empty. With it, members for the
  // header that say what it goes by.
  std::function<Status(std::span<const int32_t> tokens, PackOptions* pack)> complete;
  nlohmann::ordered_json complete_facts = nlohmann::ordered_json::object();
  SessionOptions session;  // but for its context, cards and cache types; `cancel` ends it
  std::string folder;      // for the files of the run, which go with it
  std::string results;     // file that grows depth by depth, and from which the run goes on; empty: none
  // Called before each step with its name, and after each depth. May be empty.
  std::function<void(const std::string&)> on_step;
  std::function<void(std::span<const TtftLine>)> on_depth;
};

struct TtftReport {
  nlohmann::ordered_json header;  // of the file: all that the results follow from
  std::vector<TtftLine> lines;    // depth by depth
  // Making the first context for attached cards: with the self-test and the check of the layout, which a process does
  // once a model, and so not in any line.
  int64_t first_context_us = 0;
};

// Everything runs in this process, with the same weights and threads; each run of a receiver has a context of its own,
// and the files that it reads are in the page cache. The ways take turns, every other time in reverse; receivers that
// are handed a state have one run more, which warms up. Ways that cannot be had are left out, and the header says why:
// caches that llama.cpp does not have for the model's heads, cards that cannot be attached.
//
// kInvalidArgument: no text, no depth, one twice, pack options; as ResultFile::Open; kCancelled, with the depths that
// are whole kept; else as what is measured.
Result<TtftReport> MeasureTtft(const Model& model, const TtftRequest& request);

}  // namespace qkvshare
