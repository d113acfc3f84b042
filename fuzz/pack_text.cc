// Parses arbitrary text as each of the lists that packing takes: features, levels, widths of layers. What parses is in
// range, and written out gives the same again.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "policy/features.h"
#include "runtime/pack_text.h"

namespace {

using namespace qkvshare;  // NOLINT(google-build-using-namespace)

void Require(bool condition) {
  if (!condition) std::abort();
}

void RequireRefusal(const Status& status) {
  Require(status.code() == StatusCode::kInvalidArgument && !status.message().empty());
}

constexpr uint32_t kAll = (1U << kFeatureCount) - 1;

void ReadFeatures(const std::string& text) {
  const Result<FeatureSet> set = ParseFeatures(text);
  if (!set) return RequireRefusal(set.status());
  Require((set->on & ~kAll) == 0 && (set->named & ~set->on) == 0);
  if (set->on == 0) return;  // all were taken out again
  std::string list;
  for (const std::string& name : set->Names()) list += (list.empty() ? "" : ",") + name;
  const Result<FeatureSet> again = ParseFeatures(list);
  Require(again && again->on == set->on && again->named == set->on);
}

void ReadLevels(const std::string& text) {
  const Result<std::vector<Level>> levels = ParseLevels(text);
  if (!levels) return RequireRefusal(levels.status());
  Require(levels->empty() == text.empty());
  std::string list;
  auto next = kLevels.begin();
  for (const Level level : *levels) {
    next = std::find(next, kLevels.end(), level);  // in this order, each once
    Require(next++ != kLevels.end());
    list += (list.empty() ? "" : ",") + LevelName(level);
  }
  Require(ParseLevels(list).value() == *levels);
}

void ReadLayerBits(const std::string& text, size_t layers) {
  const Result<std::vector<LayerAdjustment>> read = ParseLayerBits(text, layers);
  if (!read) return RequireRefusal(read.status());
  Require(read->size() == (text.empty() ? 0 : layers));
  std::string list;
  for (size_t i = 0; i < read->size(); ++i) {
    const auto [keys, values] = (*read)[i];
    Require(std::max(std::abs(keys), std::abs(values)) <= kMaxAdjustment);
    list +=
        (list.empty() ? "" : ";") + std::to_string(i) + ":k=" + std::to_string(keys) + ",v=" + std::to_string(values);
  }
  Require(ParseLayerBits(list, layers).value() == *read);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(data, data + size);
  ReadFeatures(text);
  ReadLevels(text);
  for (const size_t layers : {1, 30}) ReadLayerBits(text, layers);
  return 0;
}
