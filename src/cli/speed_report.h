// What `qkvshare eval speed` says of one depth.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/speed.h"

namespace qkvshare::cli {

// The fields are explained in docs/results/README.md.
nlohmann::json SpeedJson(const SpeedReport& report);
// The same as a table.
void PrintSpeed(const SpeedReport& report);

}  // namespace qkvshare::cli
