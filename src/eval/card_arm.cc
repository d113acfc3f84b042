#include "eval/card_arm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/text.h"
#include "card/static_profile.h"
#include "eval/run_facts.h"
#include "policy/controller.h"
#include "runtime/pack_text.h"

namespace qkvshare {
namespace {

// As they are read: a controller counts where the policy is known, a control's too.
constexpr std::array<const char*, 13> kKeys = {"alpha",     "features", "levels",     "protect",    "seed",
                                               "layers",    "profile",  "control_of", "controller", "inject",
                                               "max_bytes", "rounding", "sees"};
constexpr std::array<Feature, 3> kReceiverFeatures = {Feature::kPrior, Feature::kAnchors, Feature::kProbe};
constexpr const char* kOracle = "oracle";
constexpr const char *kAll = "all", *kTurn = "turn";  // what an oracle sees
constexpr const char* kExact = "exact";
constexpr double kExactBits = 16;

template <typename T>
bool ParseNumber(const std::string& text, T* number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && stop == end;
}

Policy MeasuredOf(const PackOptions& pack) { return MeasuredPolicy(pack.policy, pack.control_of); }

std::string Replace(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

// "default-probe+rarity" as ParseFeatures takes it.
std::string FeatureList(const std::string& text) {
  std::string list;
  for (const char c : text) {
    if ((c == '+' || c == '-') && !list.empty()) list += ',';
    list += c;
  }
  return list;
}

// The other way: what gives the same set.
std::string FeatureText(const FeatureSet& features) {
  const uint32_t inherited = features.on & ~features.named;
  const bool more = (inherited & ~DefaultFeatures().on) != 0;
  const FeatureSet base = inherited == 0 ? FeatureSet() : more ? FullFeatures() : DefaultFeatures();
  std::string text = inherited == 0 ? "" : more ? "full" : "default";
  for (const std::string& name : FeatureSet{base.on & ~features.on, 0}.Names()) text += fmt::format("-{}", name);
  for (const std::string& name : FeatureSet{features.named, 0}.Names())
    text += fmt::format("{}{}", text.empty() ? "" : "+", name);
  return text;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Result<CardArm> Parse() {
    QKV_RETURN_IF_ERROR(SplitOptions());
    QKV_RETURN_IF_ERROR(ReadHead());
    for (const char* key : kKeys) {
      const auto found = options_.find(key);
      if (found != options_.end()) QKV_RETURN_IF_ERROR(Set(key, found->second));
    }
    QKV_RETURN_IF_ERROR(ChooseController());
    QKV_RETURN_IF_ERROR(Check());
    arm_.name = Name();
    return std::move(arm_);
  }

 private:
  Status Invalid(const std::string& why) const {
    return {StatusCode::kInvalidArgument, fmt::format("arm {}: {}", text_, why)};
  }
  Status Named(const Status& status) const {
    return status.ok() ? status : Status(status.code(), fmt::format("arm {}: {}", text_, status.message()));
  }
  bool Given(const char* key) const { return options_.contains(key); }

  Status SplitOptions() {
    std::vector<std::string> pieces = Split(text_, ',');
    head_ = pieces.front();
    pieces.erase(pieces.begin());
    for (const std::string& piece : pieces) {
      const size_t equals = std::min(piece.find('='), piece.size());
      const std::string key = piece.substr(0, equals);
      if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
        return Invalid(fmt::format("unknown option '{}'; choose from {}", key, fmt::join(kKeys, ", ")));
      if (equals + 1 >= piece.size()) return Invalid(fmt::format("{} has no value: give {}=VALUE", key, key));
      if (!options_.emplace(key, piece.substr(equals + 1)).second) return Invalid(key + " is there twice");
    }
    return {};
  }

  // POLICY@BITS.
  Status ReadHead() {
    const size_t at = std::min(head_.find('@'), head_.size());
    const std::string policy = head_.substr(0, at);
    if (head_ == kExact) {
      arm_.pack.code_bits = kExactBits;
      return {};
    }
    arm_.oracle = policy == kOracle;
    if (arm_.oracle) {
      arm_.pack.policy = Policy::kTopology;
      arm_.pack.alpha = 0;
      arm_.pack.features = *ParseFeatures("attention,probe");
    } else {
      const Result<Policy> known = PolicyFromName(policy);
      if (!known) return Invalid(known.status().message() + ", oracle or exact");
      arm_.pack.policy = *known;
    }
    if (at == head_.size())
      return Given("max_bytes") ? Status() : Invalid(fmt::format("give its bits, as {}@4", policy));
    if (Given("max_bytes")) return Invalid("max_bytes goes without bits: leave out one of them");
    return ParseNumber(head_.substr(at + 1), &arm_.pack.code_bits)
               ? Status()
               : Invalid(fmt::format("'{}' is no number of bits", head_.substr(at + 1)));
  }

  Status Set(const std::string& key, const std::string& value) {
    PackOptions& pack = arm_.pack;
    const auto number = [&](auto* to) {
      return ParseNumber(value, to) ? Status() : Invalid(fmt::format("{}: '{}' is no number for it", key, value));
    };
    if (key == "alpha") return number(&pack.alpha);
    if (key == "protect") return number(&pack.protected_tokens);
    if (key == "seed") return number(&pack.policy_seed);
    if (key == "max_bytes") {
      QKV_RETURN_IF_ERROR(number(&pack.max_bytes));
      return pack.max_bytes > 0 ? Status() : Invalid("max_bytes: give at least 1");
    }
    if (key == "features") return Assign(ParseFeatures(FeatureList(value)), &pack.features);
    if (key == "levels") return Assign(ParseLevels(Replace(value, '/', ',')), &pack.levels);
    if (key == "controller") return {};
    if (key == "sees") {
      if (!arm_.oracle) return Invalid("sees: of the receiver's queries an oracle alone knows; leave it out");
      arm_.oracle_of_turn = value == kTurn;
      return arm_.oracle_of_turn || value == kAll ? Status() : Invalid("sees: choose all or turn");
    }
    if (key == "control_of") return Assign(PolicyFromName(value), &pack.control_of);
    if (key == "rounding") return Assign(KeyRoundingFromName(value), &pack.rounding);
    if (key == "layers") {
      arm_.layer_bits = Replace(value, '/', ',');
      return {};
    }
    if (key == "profile") {
      QKV_ASSIGN_OR_RETURN(StaticProfile profile, OpenStaticProfile(value));
      pack.profile = std::make_shared<const StaticProfile>(std::move(profile));
      return {};
    }
    QKV_RETURN_IF_ERROR(Assign(InjectModeFromName(value), &arm_.inject));
    return arm_.inject != InjectMode::kAuto ? Status() : Invalid("inject: choose fused or restore");
  }

  template <typename T>
  Status Assign(Result<T> result, T* to) const {
    if (!result) return Named(result.status());
    *to = std::move(*result);
    return {};
  }

  Status ChooseController() {
    if (arm_.oracle) return Given("controller") ? Invalid("controller: an oracle has none") : Status();
    return Named(UseController(Given("controller") ? options_.at("controller") : "", &arm_.pack));
  }

  // What the arm would pass over is refused.
  Status Check() const {
    const PackOptions& pack = arm_.pack;
    const auto given = [&](const char* key) { return Given(key) ? key : nullptr; };
    QKV_RETURN_IF_ERROR(Named(CheckGivenOptions(
        pack, {given("control_of"), given("seed"), arm_.oracle ? nullptr : given("alpha"), nullptr})));
    if (arm_.oracle && Given("features")) return Invalid("features: an oracle looks at the receiver's queries alone");
    const bool uniform = pack.policy == Policy::kUniform;
    if (uniform && Given("features")) return Invalid("features: policy uniform looks at none; leave them out");
    if (uniform && pack.max_bytes == 0 && pack.code_bits == kExactBits) {
      for (const char* key : {"levels", "protect", "layers", "profile", "rounding"}) {
        if (Given(key)) return Invalid(fmt::format("{}: at 16 bits every token is exact; leave it out", key));
      }
    }
    QKV_RETURN_IF_ERROR(Named(CheckPackOptions(pack)));
    return CheckReceiverFeatures();
  }

  Status CheckReceiverFeatures() const {
    const PackOptions& pack = arm_.pack;
    const bool topology = MeasuredOf(pack) == Policy::kTopology;
    const auto has = [&](Feature feature) { return pack.features.Has(feature); };
    for (const Feature feature : kReceiverFeatures) {
      if (topology || !pack.features.Named(feature)) continue;
      return Invalid(fmt::format("feature {} is of the receivers: it counts in policy topology and its controls only",
                                 FeatureName(feature)));
    }
    if (!topology || std::any_of(kReceiverFeatures.begin(), kReceiverFeatures.end(), has)) return {};
    return Invalid("without prior, anchors and probe policy topology knows nothing of the receivers; use local");
  }

  // Options that are as they are by default are left out.
  std::string Name() const {
    const PackOptions& pack = arm_.pack;
    if (head_ == kExact || (pack.policy == Policy::kUniform && pack.max_bytes == 0 && pack.code_bits == kExactBits))
      return kExact + Tail();
    std::string name = arm_.oracle ? kOracle : PolicyName(pack.policy);
    if (pack.max_bytes == 0) name += fmt::format("@{}", pack.code_bits);
    return name + Tail();
  }

  std::string Tail() const {
    const PackOptions& pack = arm_.pack;
    const PackOptions usual;
    std::string tail;
    const auto add = [&](bool is_other, const char* key, const std::string& value) {
      if (is_other) tail += fmt::format(",{}={}", key, value);
    };
    std::vector<std::string> levels;
    for (const Level level : pack.levels) levels.push_back(LevelName(level));
    add(pack.alpha != (arm_.oracle ? 0 : usual.alpha), "alpha", fmt::format("{}", pack.alpha));
    const bool learned = pack.controller != nullptr;
    add(!arm_.oracle && !learned && pack.features != usual.features, "features", FeatureText(pack.features));
    add(!levels.empty(), "levels", fmt::format("{}", fmt::join(levels, "/")));
    add(pack.protected_tokens != 0, "protect", std::to_string(pack.protected_tokens));
    add(pack.policy_seed != usual.policy_seed, "seed", std::to_string(pack.policy_seed));
    add(pack.rounding != usual.rounding, "rounding", KeyRoundingName(pack.rounding));
    add(!arm_.layer_bits.empty(), "layers", Replace(arm_.layer_bits, ',', '/'));
    // Results name no folders; the header has the profile's digest.
    if (Given("profile")) add(true, "profile", std::filesystem::path(options_.at("profile")).filename().string());
    add(learned && pack.controller->name() != kDefaultController, "controller", learned ? pack.controller->name() : "");
    add(pack.control_of != usual.control_of, "control_of", PolicyName(pack.control_of));
    add(arm_.inject != InjectMode::kFused, "inject", InjectModeName(arm_.inject));
    add(arm_.oracle_of_turn, "sees", kTurn);
    add(pack.max_bytes != 0, "max_bytes", std::to_string(pack.max_bytes));
    return tail;
  }

  const std::string& text_;
  std::string head_;
  std::map<std::string, std::string> options_;
  CardArm arm_;
};

}  // namespace

bool CardArm::NeedsReceiver() const { return MeasuredOf(pack) == Policy::kTopology; }

Result<CardArm> ParseCardArm(const std::string& text) { return Parser(text).Parse(); }

Status FitCardArm(const ModelIdentity& identity, const std::vector<LayerShape>& shapes, CardArm* arm) {
  const auto named = [&](const Status& status) {
    return status.ok() ? status : Status(status.code(), fmt::format("arm {}: {}", arm->name, status.message()));
  };
  if (arm->pack.profile != nullptr) QKV_RETURN_IF_ERROR(named(CheckProfileFits(*arm->pack.profile, identity, shapes)));
  Result<std::vector<LayerAdjustment>> layers = ParseLayerBits(arm->layer_bits, shapes.size());
  if (!layers) return named(layers.status());
  arm->pack.layers = std::move(*layers);
  return {};
}

nlohmann::ordered_json CardArmJson(const CardArm& arm) {
  nlohmann::ordered_json json = {{"arm", arm.name}, {"inject", InjectModeName(arm.inject)}, {"oracle", arm.oracle}};
  if (arm.oracle_of_turn) json["sees"] = kTurn;
  json.update(PackFacts(arm.pack));
  return json;
}

}  // namespace qkvshare
