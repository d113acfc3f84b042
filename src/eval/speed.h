// How fast a receiver of a card is, against llama.cpp's own ways with the same context: in one process, with the same
// weights and threads, the ways in turn.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

// Names in a report: of tests ...
inline constexpr const char *kDecodeTest = "decode", *kFirstTokenTest = "first token";
// ... and of ways: the card attached; llama.cpp alone (a context without our callbacks), with the context in its own
// cache of this type; a session that cards could be attached to, without the context; and llama.cpp alone without it.
inline constexpr const char *kFusedWay = "fused", *kF16Way = "F16", *kQ8Way = "Q8_0", *kQ4Way = "Q4_0",
                            *kNoCardWay = "no card", *kLlamaWay = "llama.cpp";
// In kFirstTokenTest: a new session that the card is attached to.
inline constexpr const char* kHandOverWay = "hand-over";

// Of the runs: the median, with the spread.
struct Timing {
  std::string way;
  int64_t median_us = 0, least_us = 0, most_us = 0;
  // Time over the first way's in the same turn, the median: what slows the machine for a while slows both.
  double ratio = 1;
};

// Ways to do the same thing, in the order in which they took turns.
struct SpeedTest {
  std::string name;
  int runs = 0;  // of each way
  std::vector<Timing> ways;

  const Timing* Find(const std::string& way) const;
};

// Private memory of one more receiver in the process, after a suffix of 32 tokens: the median of several, in bytes.
struct ReceiverMemory {
  size_t fused = 0;     // with the card attached
  size_t restored = 0;  // with the card in its own rows
  size_t empty = 0;     // of llama.cpp alone, with as many own rows as the fused one and no context before
  size_t own_rows = 0;  // part of `empty` and of `fused`: the rows for its own tokens
};

struct SpeedReport {
  size_t depth = 0;  // tokens of the context
  size_t card_bytes = 0;
  double code_bits = 0, total_bits = 0;
  int64_t pack_us = 0;                          // statistics, allocation, quantizing, writing
  int64_t prefill_us = 0;                       // of the context; 0: it was in the cache folder
  std::optional<ReceiverMemory> memory;         // nullopt: not asked for
  size_t attended_bytes = 0;                    // of the card, codes and scales, that attention reads for a token
  double machine_bandwidth = 0;                 // bytes a second (MeasureReadBandwidth), with the request's threads
  std::map<std::string, std::string> left_out;  // ways that llama.cpp does not have for this model, and why
  std::vector<SpeedTest> tests;

  const SpeedTest* Find(const std::string& test) const;
  // Bytes a second at which attention reads the card: attended_bytes over what the card adds to a token's time in
  // kDecodeTest. 0 where that was not measured, or no time is left.
  double AttentionBandwidth() const;
};

// What there is to measure, in this order. "no-card": decode and a suffix of 32 without any card or context.
const std::vector<std::string>& SpeedTestNames();

struct SpeedRequest {
  std::string text;  // repeated until there are enough tokens
  size_t depth = 8192;
  double bits = 4;
  int repeats = 5;  // runs of each way; four times as many without a card
  // No more than three runs once a test has taken so long.
  int64_t test_us = 120'000'000;
  std::vector<std::string> tests = SpeedTestNames();
  std::string folder;  // contexts are kept here: their prefill takes long
  SessionOptions session;
  // Called before each step with its name. May be empty.
  std::function<void(const std::string&)> on_step;
};

// kInvalidArgument: no text, no such test; else as what is measured.
Result<SpeedReport> MeasureSpeed(const Model& model, const SpeedRequest& request);

}  // namespace qkvshare
