// Options of packing as people write them, and what is known of receivers. The command line and the C API share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "card/card.h"
#include "card/card_info.h"
#include "qkvshare/status.h"
#include "quant/anchor.h"
#include "quant/bit_plan.h"
#include "runtime/sender.h"

namespace qkvshare {

// Levels by name, as "K4V2,K4V4,exact", in the order of kLevels. Empty: none are given. kInvalidArgument for others.
Result<std::vector<Level>> ParseLevels(const std::string& list);

// Steps by which layers get wider or narrower codes, of a model with this many layers: FIRST[-LAST]:k=STEPS,v=STEPS,
// several with ; between, as "0-2:k=1,v=1;20:v=-1", each side of a layer at most once. Empty: none. kInvalidArgument.
Result<std::vector<LayerAdjustment>> ParseLayerBits(const std::string& text, size_t layers);

// Adds a reader to the segments of these roles (none: to all). Where there are no segments, one of role "prompt" is
// made of all tokens. kInvalidArgument for a distance of 0 or a role that no segment has.
Status AddReader(const SegmentReader& reader, const std::vector<std::string>& roles, const std::string& owner,
                 size_t tokens, std::vector<Segment>* segments);

// Adds a card's anchors, as far as its context begins with these tokens. before: those that it continues, all of them,
// since its anchors are of these too. kInvalidArgument where it has none there, with what the caller calls the card;
// kUnsupported where `before` is something else.
Status AddAnchors(const Card& card, std::span<const int32_t> before, const std::string& name,
                  std::span<const int32_t> tokens, std::vector<Anchor>* anchors);

// Gives policy learned (and controls of it) its controller, by name or by the path of its file, and the features that
// this looks at; empty: the default. As OpenController; kInvalidArgument where another policy would pass it over.
Status UseController(const std::string& name_or_path, PackOptions* options);

// Options that count for some policies only, by the names under which a caller gave them; nullptr: not given.
struct GivenOptions {
  const char* control_of = nullptr;
  const char* seed = nullptr;
  const char* alpha = nullptr;
  const char* anchors = nullptr;
};
// kInvalidArgument naming one that the policy would pass over.
Status CheckGivenOptions(const PackOptions& options, const GivenOptions& given);

}  // namespace qkvshare
