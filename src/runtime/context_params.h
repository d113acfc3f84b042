// Parameters of a session's llama.cpp context. For sources of this module only: it sees llama.cpp.
#pragma once

#include "llama.h"
#include "runtime/model.h"
#include "runtime/session.h"

namespace qkvshare {

// All but callbacks. options: after CheckSessionOptions and CheckCacheTypes.
llama_context_params ContextParamsOf(const Model& model, const SessionOptions& options, const SequenceIds& ids);

}  // namespace qkvshare
