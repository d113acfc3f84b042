// What the results of a run of hops follow from.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/hop_request.h"
#include "qkvshare/status.h"
#include "runtime/session.h"

namespace qkvshare {

// Names a file of hop results.
inline constexpr const char* kHopKind = "qkvshare_hops";
inline constexpr int kHopVersion = 4;  // of the files, the value of that member

// kInvalidArgument as SelectAttendKernels.
Result<nlohmann::ordered_json> HopHeader(const Session& session, const HopRequest& request);

}  // namespace qkvshare
