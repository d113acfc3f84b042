// Parses arbitrary text as a list of features. What parses is a list of known names, which gives the same set again.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "policy/features.h"

namespace {

using namespace qkvshare;  // NOLINT(google-build-using-namespace)

void Require(bool condition) {
  if (!condition) std::abort();
}

constexpr uint32_t kAll = (1U << kFeatureCount) - 1;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Result<FeatureSet> set = ParseFeatures(std::string(data, data + size));
  if (!set) {
    Require(set.status().code() == StatusCode::kInvalidArgument && !set.status().message().empty());
    return 0;
  }
  Require((set->on & ~kAll) == 0 && (set->named & ~set->on) == 0);
  if (set->on == 0) return 0;  // all were taken out again
  std::string list;
  for (const std::string& name : set->Names()) list += (list.empty() ? "" : ",") + name;
  const Result<FeatureSet> again = ParseFeatures(list);
  Require(again && again->on == set->on && again->named == set->on);
  return 0;
}
