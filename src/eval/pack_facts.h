// How cards are packed, as results say it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "runtime/sender.h"

namespace qkvshare {

// All that a card of the same rows follows from, but for what goes by its tokens (segments, readers, anchors).
nlohmann::ordered_json PackFacts(const PackOptions& options);

}  // namespace qkvshare
