// What a run of hops is asked for: plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/hop_record.h"
#include "runtime/generate.h"
#include "runtime/model.h"
#include "runtime/sender.h"
#include "runtime/session.h"

namespace qkvshare {

// A part of the first prompt's last message that only some hops need.
struct HopPart {
  std::string text;          // as it stands there
  std::vector<size_t> hops;  // from 0
};

struct HopChain {
  std::string id;  // letters, digits, '-', '_' and '.': it names files
  // The first prompt, by the model's chat template: the last message is what all hops work on, those before it set up
  // the first hop; ...
  std::vector<ChatMessage> messages;
  std::vector<int32_t> tokens;     // ... or its tokens, where there are no messages
  std::vector<std::string> turns;  // what the user says in hop 1, 2, ...
  std::vector<HopPart> parts;      // in their order; what is not said here, policies cannot know
};

// What a hop gets of the hops before it.
enum class HandOver : uint8_t {
  kCards,     // a card of each, attached: each continues the one before, and nothing is packed twice
  kRepacked,  // one card of everything, restored into the cache and packed anew in each hop
  kSequence,  // the sequence simply goes on in the context's own cache: the same tokens in the same calls as kCards
  kText,      // the conversation as text, read again from its first token; answers are the text that counts
};
// "cards", "repacked", "sequence", "text".
const char* HandOverName(HandOver hand_over);
inline bool Packs(HandOver hand_over) { return hand_over == HandOver::kCards || hand_over == HandOver::kRepacked; }

// Whether these options make something of PackOptions::probe.
bool CountsProbe(const PackOptions& pack);

struct HopRequest {
  std::vector<HopChain> chains;
  size_t hops = 1;
  int parallel = 1;         // chains that are decoded together: the first so many, then the next
  uint32_t context = 2048;  // tokens of a chain at most; those that follow attached cards take memory
  HandOver hand_over = HandOver::kCards;
  // Where something is packed: of each hop but the last, whose card nobody would take; one: of all. Sender, hop and
  // segments are filled in.
  std::vector<PackOptions> packs = {PackOptions()};
  // The next turn is read before a hop is packed, and taken back: what it looks at is PackOptions::probe.
  bool probe = false;
  // Of each answer. Each chain and hop has dice of its own, by the seed, which must not be random.
  GenerateOptions generate;
  SessionOptions session;  // but for context, sequences and cards
  std::string results;     // file that grows group by group, and from which the run goes on; empty: none
  // Members that the file's header and lines have besides, as what an answer is worth. They must follow from the
  // request and the record. May be empty.
  std::function<void(nlohmann::ordered_json*)> add_to_header;
  std::function<void(const HopRecord&, nlohmann::ordered_json*)> add_to_line;
  // Keeps each card as CHAIN.HOP.card; empty: they are dropped. Where a run goes on, those of what is done must be
  // there.
  std::string card_folder;
  // Called before each hop of a group, with the chains that are done. May be empty.
  std::function<void(size_t chains, size_t hop)> on_hop;

  size_t GroupSize(size_t first) const;  // chains of the group that begins with this one
  const PackOptions& PackOf(size_t hop) const { return packs.size() == 1 ? packs.front() : packs[hop]; }
  std::string CardPath(const std::string& chain, size_t hop) const;
};

// Whether its cards are packed by queries: then those of generated tokens are kept too (Session::KeepQueries).
bool KeepsQueries(const HopRequest& request);

// Before the work: kInvalidArgument (which chain, which option), kUnsupported (why cards cannot be attached).
Status CheckHopRequest(const Session& session, const HopRequest& request);
// Whether the folder of cards has the one that a hop, which is done, has handed on: kInvalidArgument.
Status CheckKeptCard(const HopRecord& record, const HopRequest& request);

}  // namespace qkvshare
