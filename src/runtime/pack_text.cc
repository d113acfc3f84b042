#include "runtime/pack_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "base/text.h"
#include "policy/controller.h"

namespace qkvshare {
namespace {

Status Invalid(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

// The number that all of [begin, end) spells.
template <typename T>
bool ParseNumber(const char* begin, const char* end, T* number) {
  const auto [stop, error] = std::from_chars(begin, end, *number);
  return error == std::errc() && stop == end;
}

// FIRST[-LAST], ascending and below `layers`.
bool ParseRange(const std::string& text, size_t layers, size_t* first, size_t* last) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  const char* dash = std::find(begin, end, '-');
  if (!ParseNumber(begin, dash, first)) return false;
  *last = *first;
  if (dash != end && !ParseNumber(dash + 1, end, last)) return false;
  return *first <= *last && *last < layers;
}

// SIDE=STEPS.
bool ParseSteps(const std::string& text, char* side, int* steps) {
  if (text.size() < 3 || (text[0] != 'k' && text[0] != 'v') || text[1] != '=') return false;
  *side = text[0];
  return ParseNumber(text.data() + 2, text.data() + text.size(), steps) && std::abs(*steps) <= kMaxAdjustment;
}

// What was given for a layer so far.
struct LayerSteps {
  std::optional<int8_t> keys, values;
};

// One entry of ParseLayerBits. False where it says nothing, or what was said before.
bool ApplyLayerBits(const std::string& entry, std::vector<LayerSteps>* layers) {
  const size_t colon = entry.find(':');
  size_t first = 0;
  size_t last = 0;
  if (colon == std::string::npos || !ParseRange(entry.substr(0, colon), layers->size(), &first, &last)) return false;
  for (const std::string& word : Split(entry.substr(colon + 1), ',')) {
    char side = 0;
    int steps = 0;
    if (!ParseSteps(word, &side, &steps)) return false;
    for (size_t layer = first; layer <= last; ++layer) {
      std::optional<int8_t>& given = side == 'k' ? (*layers)[layer].keys : (*layers)[layer].values;
      if (given) return false;
      given = static_cast<int8_t>(steps);
    }
  }
  return true;
}

}  // namespace

Result<std::vector<Level>> ParseLevels(const std::string& list) {
  std::vector<Level> levels;
  if (list.empty()) return levels;
  const std::vector<std::string> words = Split(list, ',');
  std::string names;
  for (const Level level : kLevels) {
    names += (names.empty() ? "" : ", ") + LevelName(level);
    if (std::find(words.begin(), words.end(), LevelName(level)) != words.end()) levels.push_back(level);
  }
  for (const std::string& word : words) {
    const bool known = std::any_of(levels.begin(), levels.end(), [&](Level l) { return LevelName(l) == word; });
    if (!known) return Invalid(fmt::format("unknown level '{}'; choose from {}", word, names));
  }
  return levels;
}

Result<std::vector<LayerAdjustment>> ParseLayerBits(const std::string& text, size_t layers) {
  std::vector<LayerAdjustment> adjustments;
  if (text.empty()) return adjustments;
  std::vector<LayerSteps> given(layers);
  for (const std::string& entry : Split(text, ';')) {
    if (ApplyLayerBits(entry, &given)) continue;
    return Invalid(
        fmt::format("bits of layers '{}': give FIRST[-LAST]:k=STEPS,v=STEPS with layers 0 to {} and steps from "
                    "-{} to {}, each side of a layer once, as 0-2:k=1,v=1",
                    entry, layers - 1, kMaxAdjustment, kMaxAdjustment));
  }
  for (const LayerSteps& steps : given) adjustments.push_back({steps.keys.value_or(0), steps.values.value_or(0)});
  return adjustments;
}

Status AddReader(const SegmentReader& reader, const std::vector<std::string>& roles, const std::string& owner,
                 size_t tokens, std::vector<Segment>* segments) {
  if (reader.distance == 0) return Invalid(fmt::format("reader {}: not a distance of 1 or more", reader.agent));
  if (segments->empty()) segments->push_back({"prompt", owner, "", 0, static_cast<uint32_t>(tokens)});
  std::vector<std::string> missing = roles;
  for (Segment& segment : *segments) {
    if (!roles.empty() && std::find(roles.begin(), roles.end(), segment.role) == roles.end()) continue;
    segment.readers.push_back(reader);
    std::erase(missing, segment.role);
  }
  if (missing.empty()) return {};
  return Invalid(fmt::format("reader {}: no segment of role '{}'", reader.agent, missing.front()));
}

Status AddAnchors(const Card& card, std::span<const int32_t> before, const std::string& name,
                  std::span<const int32_t> tokens, std::vector<Anchor>* anchors) {
  if (card.anchors().empty()) return Invalid(name + " has no anchors: it was packed by policy uniform");
  if (before.size() != card.first_token()) {
    return {StatusCode::kUnsupported,
            name + " continues another card, without which it is not known what its anchors are of: flatten both"};
  }
  // A card may go on otherwise than this context does: its anchors count as far as both are the same.
  std::vector<int32_t> theirs(before.begin(), before.end());
  theirs.insert(theirs.end(), card.token_ids().begin(), card.token_ids().end());
  const auto same = static_cast<size_t>(std::ranges::mismatch(theirs, tokens).in1 - theirs.begin());
  const size_t count = anchors->size();
  for (const Anchor& anchor : card.anchors()) {
    if (anchor.token < same) anchors->push_back(anchor);
  }
  if (anchors->size() > count) return {};
  return Invalid(name + " has no anchors in this context: it is of another text");
}

Status UseController(const std::string& name_or_path, PackOptions* options) {
  if (MeasuredPolicy(options->policy, options->control_of) != Policy::kLearned) {
    if (name_or_path.empty()) return {};
    return Invalid(
        fmt::format("a controller counts in policy learned and its controls only: leave it out, or choose "
                    "another policy than {}",
                    PolicyName(options->policy)));
  }
  if (options->features != DefaultFeatures()) {
    return Invalid("features: policy learned looks at those that its controller was trained on; leave them out");
  }
  QKV_ASSIGN_OR_RETURN(options->controller, OpenController(name_or_path.empty() ? kDefaultController : name_or_path));
  options->features = options->controller->features();
  return {};
}

Status CheckGivenOptions(const PackOptions& options, const GivenOptions& given) {
  const Policy measured = MeasuredPolicy(options.policy, options.control_of);
  const auto refuse = [&](const char* name, const char* where) {
    return Invalid(fmt::format("{} counts in {} only: leave it out, or choose another policy than {}", name, where,
                               PolicyName(options.policy)));
  };
  if (given.control_of != nullptr && !IsControl(options.policy))
    return refuse(given.control_of, "the policies random and inverted");
  if (given.seed != nullptr && options.policy != Policy::kRandom) return refuse(given.seed, "policy random");
  for (const char* name : {given.alpha, given.anchors}) {
    if (name != nullptr && measured != Policy::kTopology) return refuse(name, "policy topology and its controls");
  }
  return {};
}

}  // namespace qkvshare
