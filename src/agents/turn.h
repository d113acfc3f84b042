// One agent at work once: it takes cards over, reads its instruction, generates, and packs what it added.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "agents/run_record.h"
#include "agents/topology.h"
#include "card/card_info.h"
#include "qkvshare/status.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

// All that a turn needs. Plain data, so that another process may do it.
struct TurnJob {
  std::string turn;
  Agent agent;                    // `system` counts only where nothing is taken over
  std::vector<HandedCard> taken;  // its context, in order; paths relative to the folder
  // Who will see what it adds, as far as it shares it; and what the next of them will be told, for probe queries.
  std::vector<SegmentReader> readers;
  std::vector<std::string> receiver_prompts;
  std::string folder;          // of the run: cards are read and written here
  std::string anchors_id;      // EarlierRunId of the next; empty: none
  std::string anchors_folder;  // of an earlier run of the same topology, whose receivers left anchors; or empty
  SessionOptions session;      // threads, batch, cache types...; context 0: as much as is needed
};

// All may be empty.
struct TurnHooks {
  std::function<void(const char* what, size_t done, size_t total)> progress;  // in tokens
  std::function<void(const std::string& text)> text;                          // generated, as it comes
  const std::atomic<bool>* cancel = nullptr;                                  // ends the turn once it is true
};

// Files of a turn in the folder of its run. part: from 1.
std::string CardFile(const std::string& turn);
std::string PartFile(const std::string& turn, size_t part);

// Writes the turn's card, and a card of each run of segments that it shares where it does not share all.
// kCancelled; kOutOfRange where the context does not hold what is taken over, the instruction and
// a first token (needed and available), or a budget is too small; kUnsupported where attention cannot read cards where
// they lie; kCorrupt and kNotFound for cards in the folder; else as Session, Generate and PackTokens.
Result<TurnRecord> RunTurn(const Model& model, const TurnJob& job, const TurnHooks& hooks);

}  // namespace qkvshare
