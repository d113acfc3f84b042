#include "qkvshare/status.h"

namespace qkvshare {

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kIo: return "io";
    case StatusCode::kCorrupt: return "corrupt";
    case StatusCode::kMismatch: return "mismatch";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kOutOfRange: return "out_of_range";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kNonFinite: return "non_finite";
    case StatusCode::kInternal: return "internal";
  }
  return "unknown";
}

}  // namespace qkvshare
