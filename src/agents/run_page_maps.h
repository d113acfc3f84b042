// The bit maps of a run's page: each token on a background that says how many bits it has.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "agents/run_page.h"
#include "agents/run_record.h"

namespace qkvshare {

// How many of `all` a part may have if `parts` are to share them, at most `most`; an even number.
size_t ShareOf(size_t all, size_t parts, size_t most);

// HTML: of each of the first `turns` turns that has tokens, a folded part with the id "map-I". whose: tokens these are,
// for the words before them.
std::string BitMaps(const RunRecord& run, const std::vector<TurnTokens>& tokens, size_t turns,
                    const std::string& whose = "Each turn\u2019s own tokens");

}  // namespace qkvshare
