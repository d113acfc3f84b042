#include "agents/run_record.h"

#include <algorithm>
#include <array>

namespace qkvshare {
namespace {

constexpr std::array<const char*, 5> kNames = {"stopped", "limit", "full", "empty", "read"};  // as Outcome

}  // namespace

const char* OutcomeName(Outcome outcome) { return kNames[static_cast<size_t>(outcome)]; }

Result<Outcome> OutcomeFromName(const std::string& name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<Outcome>(found - kNames.begin());
  return Status(StatusCode::kInvalidArgument, "there is no outcome '" + name + "'");
}

}  // namespace qkvshare
