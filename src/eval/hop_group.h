// Chains of one group, side by side: each is a sequence of the session.
#pragma once

#include <cstddef>
#include <vector>

#include "eval/hop_record.h"
#include "eval/hop_request.h"
#include "qkvshare/status.h"
#include "runtime/session.h"

namespace qkvshare {

// Runs all hops of the group that begins with chain `first`, of a request that CheckHopRequest has passed. Records
// chain by chain. kCancelled; else as Prefill, GenerateMany, PackSession.
Result<std::vector<HopRecord>> RunHopGroup(size_t first, const HopRequest& request, Session* session);

}  // namespace qkvshare
