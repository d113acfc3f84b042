// A page about a run, for people: who handed what to whom, how long it took, what was said, and with how many bits.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agents/run_record.h"
#include "agents/schedule.h"
#include "agents/topology.h"
#include "agents/turn_tokens.h"

namespace qkvshare {

// What each page starts with.
inline constexpr std::string_view kPageStart = "<!DOCTYPE html>";

// One HTML document in UTF-8 that needs nothing else: no network, no scripts. Light or dark, as the reader's system is.
// tokens: of each turn of the record; what is missing has no bit map. A record may lack turns of the schedule, those
// that have not been done.
//
// Long things are cut, and the page says so: it is a few MB at most for runs of any size.
std::string RunPage(const Topology& topology, const Schedule& schedule, const RunRecord& run,
                    const std::vector<TurnTokens>& tokens);

}  // namespace qkvshare
