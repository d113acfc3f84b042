// What is said where a run that grows a file of results is interrupted.
#pragma once

#include <string>

#include "qkvshare/status.h"

namespace qkvshare::cli {

// The status; where it says kCancelled, with what is kept and how to go on. results: the file; empty: there is none.
inline Status WithWhatIsKept(const Status& status, const std::string& results) {
  if (status.code() != StatusCode::kCancelled) return status;
  const std::string kept = results.empty() ? "nothing is kept without -o" : "what is done is kept in " + results;
  return {status.code(), "interrupted; " + kept + (results.empty() ? "" : ", and the same command goes on from there")};
}

}  // namespace qkvshare::cli
