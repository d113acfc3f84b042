// The machine that times were taken on.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace qkvshare {

// {"cpu", "cores"}; the CPU is "unknown" where the system does not tell.
nlohmann::ordered_json MachineFacts();

}  // namespace qkvshare
