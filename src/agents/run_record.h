// What a run of a topology did: plain data, as its report, its page and its folder have it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "qkvshare/status.h"

namespace qkvshare {

// A card as an agent takes it over: all of it, or its first tokens.
struct HandedCard {
  std::string path;  // in the run's folder: relative to it
  std::string id;    // content id, hex
  uint32_t tokens = 0;

  friend bool operator==(const HandedCard&, const HandedCard&) = default;
};

// How a turn ended. None of them ends the run.
enum class Outcome : uint8_t {
  kStopped,  // a stop text, or the model's end
  kLimit,    // `predict` reached
  kFull,     // the context is full
  kEmpty,    // nothing generated: the model ended at once
  kRead,     // `predict` is 0
};
const char* OutcomeName(Outcome outcome);
// kInvalidArgument.
Result<Outcome> OutcomeFromName(const std::string& name);

// One turn that is done.
struct TurnRecord {
  std::string turn;  // name, as Turn::name
  std::string agent;
  Outcome outcome = Outcome::kRead;
  std::string prompt;             // what the agent was told, without what it took over
  std::string text;               // what it generated
  std::string mode;               // "prefill" where it took nothing over, else "fused" or "restore"
  std::string reason;             // of the mode
  std::vector<HandedCard> taken;  // its context before its own tokens, in order
  std::vector<HandedCard> gives;  // what its receivers get: its card, or parts of it
  HandedCard card;                // of all its own tokens
  uint32_t taken_tokens = 0, read_tokens = 0, generated_tokens = 0;
  uint64_t taken_bytes = 0;           // of the files of `taken`
  uint64_t card_bytes = 0;            // of the files of `gives`
  double code_bits = 0;               // of `card`, average
  std::string policy;                 // of `card`, as it describes itself
  std::string note;                   // what was done otherwise than the topology says, and why; or empty
  std::vector<std::string> features;  // that the policy went by
  std::vector<std::pair<std::string, int64_t>> stages;  // us, in order; see docs/agents.md
  int64_t ttft_us = 0;   // from the cards' being handed over to the first token (to the last token read where there is
                         // none): stages up to first_token
  bool worker = false;   // in a process of its own
  bool resumed = false;  // done in an earlier run

  friend bool operator==(const TurnRecord&, const TurnRecord&) = default;
};

// The whole run.
struct RunRecord {
  std::string topology;  // file
  std::string model;     // name
  std::string folder;
  std::vector<TurnRecord> turns;    // in the order of the schedule
  double prefill_us_per_token = 0;  // of the turns here that took nothing over; 0: there were none
  int64_t total_us = 0;

  // What it would have taken to prefill what was taken over, at this speed; 0: not known.
  int64_t ReprefillUs(const TurnRecord& turn) const {
    return static_cast<int64_t>(prefill_us_per_token * turn.taken_tokens);
  }
};

}  // namespace qkvshare
