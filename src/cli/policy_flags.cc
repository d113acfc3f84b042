#include "cli/policy_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "base/hash.h"
#include "base/text.h"
#include "card/card_chain.h"
#include "card/static_profile.h"
#include "cli/options.h"
#include "policy/controller.h"
#include "runtime/card_list.h"
#include "runtime/pack_text.h"

namespace qkvshare::cli {
namespace {

Status Invalid(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

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
  if (colon < text.size()) reader.roles = Split(text.substr(colon + 1), ',');
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

}  // namespace

void PolicyFlags::AddTo(CLI::App* app) {
  app->add_option("--policy", policy,
                  "Bit allocation: uniform, local (attention of the last window), topology (and what is known of the "
                  "receivers), learned (a trained controller), or a control: random, inverted")
      ->capture_default_str();
  app->add_option("--bits", bits, "Average bits of a key or value channel, 2 to 16 (16: exact)")->capture_default_str();
  app->add_option("--max-bytes", max_bytes, "Bytes of the card at most, instead of --bits")
      ->check(Count(1))
      ->excludes("--bits");
  app->add_option("--protect-last", protect_last, "Last tokens that stay exact")
      ->check(Count(0, UINT32_MAX))
      ->capture_default_str();
  app->add_option("--rounding", rounding,
                  "Keys of 2 and 4 bits: queries (so that the last queries of the text see least of the errors), "
                  "nearest, or auto (queries, where there is flash attention)")
      ->capture_default_str();
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
  app->add_option("--controller", controller,
                  fmt::format("learned: the controller, {} or a file of tools/train_controller.py",
                              fmt::join(BuiltInControllers(), ", ")))
      ->check(NotEmpty())
      ->default_str(kDefaultController);
  app->add_option("--alpha", alpha, "topology: share of the sender's own importance, 0 to 1")
      ->check(Finite(0, 1))
      ->default_str(fmt::format("{}", kDefaultAlpha));
  app->add_option("--reader", readers,
                  "An agent that will use the card, NAME[@DISTANCE][:ROLE,ROLE]; may be repeated. topology counts it; "
                  "every other policy only keeps it in the card, for later agents");
  app->add_option("--anchors-from", anchor_cards,
                  "topology: a card of an earlier receiver of this context, for its anchors; may be repeated");
  app->add_option("--control-of", control_of, "random, inverted: the policy whose levels they rearrange")
      ->default_str(PolicyName(PackOptions().control_of));
  app->add_option("--policy-seed", seed, "random: seed of the shuffle")
      ->check(Count(0))
      ->default_str(std::to_string(PackOptions().policy_seed));
}

Result<PackOptions> PolicyFlags::Options() const {
  PackOptions options;
  QKV_ASSIGN_OR_RETURN(options.policy, PolicyFromName(policy));
  if (control_of) {
    QKV_ASSIGN_OR_RETURN(options.control_of, PolicyFromName(*control_of));
  }
  QKV_ASSIGN_OR_RETURN(options.features, ParseFeatures(features));
  QKV_ASSIGN_OR_RETURN(options.rounding, KeyRoundingFromName(rounding));
  QKV_ASSIGN_OR_RETURN(options.levels, ParseLevels(levels));
  QKV_RETURN_IF_ERROR(UseController(controller, &options));
  options.policy_seed = seed.value_or(options.policy_seed);
  options.alpha = alpha.value_or(options.alpha);
  options.code_bits = bits;
  options.max_bytes = max_bytes;
  options.protected_tokens = protect_last;
  if (!profile.empty()) {
    QKV_ASSIGN_OR_RETURN(StaticProfile read, OpenStaticProfile(profile));
    options.profile = std::make_shared<const StaticProfile>(std::move(read));
  }
  QKV_RETURN_IF_ERROR(CheckPackOptions(options));
  QKV_RETURN_IF_ERROR(
      CheckGivenOptions(options, {control_of ? "--control-of" : nullptr, seed ? "--policy-seed" : nullptr,
                                  alpha ? "--alpha" : nullptr, anchor_cards.empty() ? nullptr : "--anchors-from"}));
  return options;
}

std::vector<std::string> PolicyFlags::InputFiles() const {
  std::vector<std::string> files = anchor_cards;
  if (!profile.empty()) files.push_back(profile);
  const std::vector<std::string> names = BuiltInControllers();
  if (!controller.empty() && std::find(names.begin(), names.end(), controller) == names.end())
    files.push_back(controller);
  return files;
}

Result<std::vector<LayerAdjustment>> PolicyFlags::Layers(size_t layers) const {
  return ParseLayerBits(layer_bits, layers);
}

Status PolicyFlags::AddAnchors(std::span<const int32_t> tokens, std::vector<Anchor>* anchors) const {
  for (const std::string& path : anchor_cards) {
    QKV_ASSIGN_OR_RETURN(const std::vector<ChainCard> chain, OpenWithParents({path}));
    std::vector<std::shared_ptr<const Card>> cards;
    for (const ChainCard& link : chain) cards.push_back(link.card);
    QKV_ASSIGN_OR_RETURN(std::vector<CardPart> parts, PlaceCards(cards));
    parts.pop_back();
    QKV_RETURN_IF_ERROR(qkvshare::AddAnchors(*cards.back(), TokensOf(parts), path, tokens, anchors));
  }
  return {};
}

Status PolicyFlags::AddReaders(const std::string& owner, size_t tokens, std::vector<Segment>* segments) const {
  for (const std::string& text : readers) {
    QKV_ASSIGN_OR_RETURN(const Reader reader, ParseReader(text));
    QKV_RETURN_IF_ERROR(AddReader(reader.reader, reader.roles, owner, tokens, segments));
  }
  return {};
}

std::string ProfileText(const Card& card) {
  switch (card.profile().kind) {
    case ProfileKind::kNone: return "none";
    case ProfileKind::kMeasured: return "measured";
    case ProfileKind::kStatic: return "static " + ToHex(card.profile().id);
    case ProfileKind::kInherited: return "inherited";
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
