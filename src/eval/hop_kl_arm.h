// Arms of `eval hops`: how a hop gets the conversation before it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "eval/chain_arm.h"
#include "eval/hop_request.h"
#include "qkvshare/status.h"

namespace qkvshare {

enum class HopKlWay : uint8_t {
  kChain,  // as in `eval chain`: what a hop gets has gone through all hand-overs before it
  kOnce,   // the F16 sequence of all hops before, packed now as one card: a single hand-over
  kFloor,  // the F16 sequence again, read in pieces of 16 tokens
};

struct HopKlArm {
  HopKlWay way = HopKlWay::kChain;
  ChainArm arm;  // kOnce: uniform cards, attached
};

// As ParseChainArm takes it, but for "f16" (what the others are compared with) and "text" (other tokens); also
// "once@BITS[,KEY=VALUE...]" and "floor". kInvalidArgument says what there is, or which option does not count.
Result<HopKlArm> ParseHopKlArm(const std::string& text);
// kInvalidArgument also where two are the same, or there are none.
Result<std::vector<HopKlArm>> ParseHopKlArms(std::span<const std::string> texts);

// What is compared where nothing is asked for.
std::vector<std::string> DefaultHopKlArms();

// The arms that the others are compared with where nothing else is asked for: those of a single hand-over, or else the
// first.
std::vector<std::string> HopKlReferences(std::span<const std::string> arms);

// All that it stands for, for the header of results. request: as the arm has it.
nlohmann::ordered_json HopKlArmJson(const HopKlArm& arm, const HopRequest& request);

}  // namespace qkvshare
