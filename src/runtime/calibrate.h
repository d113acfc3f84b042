// Calibration: measures a static profile of a model on text, its own where none is given.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "card/static_profile.h"
#include "qkvshare/status.h"
#include "runtime/session.h"

namespace qkvshare {

struct CalibrateOptions {
  std::vector<std::string> texts;  // empty: text that the model writes, sampled at temperature 1
  size_t tokens = 1024;            // of all texts, at most
  size_t piece_tokens = 512;       // that one text, or one piece of a longer one, fills the context with
  uint32_t seed = 1;
  // Called with tokens done and wanted. May be empty.
  std::function<void(size_t, size_t)> progress;
};

// Fills the session with each text in turn and measures its keys, the first kSinkTokens of each left out. The session
// is empty afterwards. kInvalidArgument (too little text), kNonFinite naming layer and token, kCancelled.
Result<StaticProfile> Calibrate(Session* session, const CalibrateOptions& options);

}  // namespace qkvshare
