#include "cli/policy_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/hash.h"
#include "card/static_profile.h"
#include "cli/options.h"

namespace qkvshare::cli {
namespace {

std::vector<std::string> SplitAtCommas(const std::string& list) {
  std::vector<std::string> words;
  for (size_t start = 0; start <= list.size();) {
    const size_t end = std::min(list.find(',', start), list.size());
    words.push_back(list.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

Status Invalid(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

std::string ChoiceName(Level level) { return level == kExactLevel ? "exact" : LevelName(level); }

// In the order of kLevels.
Result<std::vector<Level>> ParseLevels(const std::string& list) {
  std::vector<Level> levels;
  if (list.empty()) return levels;
  const std::vector<std::string> words = SplitAtCommas(list);
  std::string names;
  for (const Level level : kLevels) {
    names += (names.empty() ? "" : ", ") + ChoiceName(level);
    if (std::find(words.begin(), words.end(), ChoiceName(level)) != words.end()) levels.push_back(level);
  }
  for (const std::string& word : words) {
    const bool known = std::any_of(levels.begin(), levels.end(), [&](Level l) { return ChoiceName(l) == word; });
    if (!known) return Invalid(fmt::format("--levels: unknown level '{}'; choose from {}", word, names));
  }
  return levels;
}

struct Reader {
  SegmentReader reader;
  std::vector<std::string> roles;  // empty: all
};

Result<Reader> ParseReader(const std::string& text) {
  const auto invalid = [&](const char* why) {
    return Invalid(fmt::format("--reader {}: {}; it takes NAME[@DISTANCE][:ROLE,ROLE], as B@2:user", text, why));
  };
  Reader reader;
  const size_t colon = std::min(text.find(':'), text.size());
  if (colon < text.size()) reader.roles = SplitAtCommas(text.substr(colon + 1));
  const std::string name = text.substr(0, colon);
  const size_t at = std::min(name.find('@'), name.size());
  reader.reader.agent = name.substr(0, at);
  if (reader.reader.agent.empty()) return invalid("no name");
  if (at == name.size()) return reader;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + at + 1, end, reader.reader.distance);
  if (error != std::errc() || stop != end || reader.reader.distance == 0) return invalid("not a distance of 1 or more");
  return reader;
}

// One entry of --layer-bits: FIRST[-LAST]:SIDE=STEPS[,SIDE=STEPS].
Status ApplyLayerBits(const std::string& entry, std::vector<LayerAdjustment>* layers) {
  const auto invalid = [&] {
    return Invalid(
        fmt::format("--layer-bits {}: it takes FIRST[-LAST]:k=STEPS,v=STEPS with layers 0 to {} and steps from "
                    "-{} to {}, as 0-2:k=1,v=1",
                    entry, layers->size() - 1, kMaxAdjustment, kMaxAdjustment));
  };
  const char* end = entry.data() + entry.size();
  size_t first = 0;
  auto parsed = std::from_chars(entry.data(), end, first);
  size_t last = first;
  if (parsed.ec != std::errc()) return invalid();
  if (parsed.ptr < end && *parsed.ptr == '-') parsed = std::from_chars(parsed.ptr + 1, end, last);
  if (parsed.ec != std::errc() || parsed.ptr == end || *parsed.ptr != ':') return invalid();
  if (first > last || last >= layers->size()) return invalid();
  for (const std::string& word : SplitAtCommas(std::string(parsed.ptr + 1, end))) {
    int steps = 0;
    const char* word_end = word.data() + word.size();
    if (word.size() < 3 || (word[0] != 'k' && word[0] != 'v') || word[1] != '=') return invalid();
    const auto [stop, error] = std::from_chars(word.data() + 2, word_end, steps);
    if (error != std::errc() || stop != word_end || std::abs(steps) > kMaxAdjustment) return invalid();
    for (size_t layer = first; layer <= last; ++layer) {
      (word[0] == 'k' ? (*layers)[layer].keys : (*layers)[layer].values) = static_cast<int8_t>(steps);
    }
  }
  return {};
}

}  // namespace

void PolicyFlags::AddTo(CLI::App* app) {
  app->add_option("--policy", policy,
                  "Bit allocation: uniform, local (attention of the last window), topology (and what is known of the "
                  "receivers), or a control: random, inverted")
      ->capture_default_str();
  app->add_option("--bits", bits, "Average bits of a key or value channel, 2 to 16 (16: exact)")->capture_default_str();
  app->add_option("--max-bytes", max_bytes, "Bytes of the card at most, instead of --bits")
      ->check(CLI::PositiveNumber)
      ->excludes("--bits");
  app->add_option("--protect-last", protect_last, "Last tokens that stay exact")->capture_default_str();
  app->add_option("--levels", levels, "Levels to choose from, as K4V2,K4V4,exact (default: all)")->check(NotEmpty());
  app->add_option("--layer-bits", layer_bits,
                  "Layers that get wider or narrower codes than the levels say, in steps of 2, 4, 8, 16 bits: "
                  "FIRST[-LAST]:k=STEPS,v=STEPS, several with ; between, as '0-2:k=1,v=1;20:v=-1'")
      ->check(NotEmpty());
  app->add_option("--profile", profile,
                  "Key statistics to pack with, of `qkvshare calibrate` (default: those of the text)")
      ->check(NotEmpty());
  app->add_option("--features", features,
                  "What the policy looks at: default, full, or names; -name and +name change the default "
                  "(docs/policies.md)")
      ->capture_default_str();
  app->add_option("--alpha", alpha, "topology: share of the sender's own importance, 0 to 1")
      ->check(Finite(0, 1))
      ->capture_default_str();
  app->add_option("--reader", readers,
                  "topology: an agent that will use the card, NAME[@DISTANCE][:ROLE,ROLE]; may be repeated");
  app->add_option("--anchors-from", anchor_cards,
                  "topology: a card of an earlier receiver of this context, for its anchors; may be repeated");
  app->add_option("--control-of", control_of, "random, inverted: the policy whose levels they rearrange")
      ->capture_default_str();
  app->add_option("--policy-seed", seed, "random: seed of the shuffle")->capture_default_str();
}

Result<PackOptions> PolicyFlags::Options() const {
  PackOptions options;
  QKV_ASSIGN_OR_RETURN(options.policy, PolicyFromName(policy));
  QKV_ASSIGN_OR_RETURN(options.control_of, PolicyFromName(control_of));
  QKV_ASSIGN_OR_RETURN(options.features, ParseFeatures(features));
  QKV_ASSIGN_OR_RETURN(options.levels, ParseLevels(levels));
  options.policy_seed = seed;
  options.alpha = alpha;
  options.code_bits = bits;
  options.max_bytes = max_bytes;
  options.protected_tokens = protect_last;
  if (!profile.empty()) {
    QKV_ASSIGN_OR_RETURN(StaticProfile read, OpenStaticProfile(profile));
    options.profile = std::make_shared<const StaticProfile>(std::move(read));
  }
  QKV_RETURN_IF_ERROR(CheckPackOptions(options));
  const bool is_topology = options.policy == Policy::kTopology ||
                           (options.control_of == Policy::kTopology &&
                            (options.policy == Policy::kRandom || options.policy == Policy::kInverted));
  if (!is_topology && (!anchor_cards.empty() || alpha != kDefaultAlpha)) {
    return Invalid("--anchors-from and --alpha count in policy topology only");
  }
  return options;
}

Result<std::vector<LayerAdjustment>> PolicyFlags::Layers(size_t layers) const {
  std::vector<LayerAdjustment> adjustments;
  if (layer_bits.empty()) return adjustments;
  adjustments.resize(layers);
  for (size_t start = 0; start <= layer_bits.size();) {
    const size_t end = std::min(layer_bits.find(';', start), layer_bits.size());
    QKV_RETURN_IF_ERROR(ApplyLayerBits(layer_bits.substr(start, end - start), &adjustments));
    start = end + 1;
  }
  return adjustments;
}

Status PolicyFlags::AddAnchors(std::span<const int32_t> tokens, std::vector<Anchor>* anchors) const {
  for (const std::string& path : anchor_cards) {
    QKV_ASSIGN_OR_RETURN(const Card card, Card::Open(path));
    if (card.anchors().empty()) return Invalid(path + " has no anchors: it was packed by policy uniform");
    // A card may go on otherwise than this context does: its anchors count as far as both are the same.
    size_t same = std::min<size_t>(card.first_token(), tokens.size());
    for (const int32_t id : card.token_ids()) {
      if (same == tokens.size() || tokens[same] != id) break;
      ++same;
    }
    const size_t before = anchors->size();
    for (const Anchor& anchor : card.anchors()) {
      if (anchor.token < same) anchors->push_back(anchor);
    }
    if (anchors->size() == before) return Invalid(path + " has no anchors in this context: it is of another text");
  }
  return {};
}

Status PolicyFlags::AddReaders(const std::string& owner, size_t tokens, std::vector<Segment>* segments) const {
  for (const std::string& text : readers) {
    QKV_ASSIGN_OR_RETURN(const Reader reader, ParseReader(text));
    if (segments->empty()) segments->push_back({"prompt", owner, "", 0, static_cast<uint32_t>(tokens)});
    std::vector<std::string> missing = reader.roles;
    for (Segment& segment : *segments) {
      const auto& roles = reader.roles;
      if (!roles.empty() && std::find(roles.begin(), roles.end(), segment.role) == roles.end()) continue;
      segment.readers.push_back(reader.reader);
      std::erase(missing, segment.role);
    }
    if (!missing.empty()) return Invalid(fmt::format("--reader {}: no segment of role '{}'", text, missing.front()));
  }
  return {};
}

std::string ProfileText(const Card& card) {
  switch (card.profile().kind) {
    case ProfileKind::kNone: return "none";
    case ProfileKind::kMeasured: return "measured";
    case ProfileKind::kStatic: return "static " + ToHex(card.profile().id);
  }
  return "none";
}

nlohmann::json LevelsJson(const Card& card) {
  nlohmann::json levels = nlohmann::json::array();
  for (size_t i = 0; i < card.plan().levels.size(); ++i) {
    const Level level = card.plan().levels[i];
    levels.push_back(
        {{"key_bits", level.key_bits}, {"value_bits", level.value_bits}, {"tokens", card.order().level_size[i]}});
  }
  return levels;
}

}  // namespace qkvshare::cli
