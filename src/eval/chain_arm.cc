#include "eval/chain_arm.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "eval/fidelity_arm.h"

namespace qkvshare {
namespace {

constexpr const char* kRequantized = "requantized";
constexpr const char* kF16 = "f16";
constexpr const char* kText = "text";

Status InvalidArm(const std::string& text, const std::string& why) {
  return {StatusCode::kInvalidArgument, fmt::format("arm {}: {}", text, why)};
}

// What a card of a chain cannot be.
Status CheckCard(const std::string& text, const CardArm& card) {
  if (card.oracle) return InvalidArm(text, "nobody knows here what a receiver will ask; use topology");
  if (card.inject != InjectMode::kFused)
    return InvalidArm(text, "inject: the cards of a chain are attached; leave it out, or use requantized");
  if (card.pack.max_bytes > 0) return InvalidArm(text, "max_bytes: each hop has a card of its own size; give bits");
  for (const Feature feature : {Feature::kConfidence, Feature::kNextEntropy, Feature::kAnchors}) {
    if (!card.pack.features.Named(feature)) continue;
    const char* instead =
        card.pack.controller != nullptr ? "take a controller without it, as controller=gsm8k-window" : "leave it out";
    return InvalidArm(text, fmt::format("feature {} is not known in a chain; {}", FeatureName(feature), instead));
  }
  return {};
}

}  // namespace

std::string ChainArm::FileName() const {
  std::string file = name;
  std::replace_if(file.begin(), file.end(), [](char c) { return c == '/' || c == ':' || c == ';'; }, '-');
  return file;
}

Result<ChainArm> ParseUniformArm(const std::string& text, const std::string& way, HandOver hand_over) {
  const Result<CardArm> card = ParseCardArm(fmt::format("uniform{}", text.substr(way.size())));
  if (!card) {
    std::string why = card.status().message();
    return Status(card.status().code(),
                  fmt::format("arm {}, packed as {}", text, why.substr(std::min(why.find(' ') + 1, why.size()))));
  }
  QKV_RETURN_IF_ERROR(CheckCard(text, *card));
  ChainArm arm;
  arm.hand_over = hand_over;
  arm.card = *card;
  const size_t at = std::min(card->name.find('@'), card->name.size());
  arm.name = at == card->name.size() ? fmt::format("{}@16", way) : fmt::format("{}{}", way, card->name.substr(at));
  return arm;
}

Result<ChainArm> ParseChainArm(const std::string& text) {
  ChainArm arm;
  arm.name = text;
  if (text == kF16 || text == kText) {
    arm.hand_over = text == kF16 ? HandOver::kSequence : HandOver::kText;
    return arm;
  }
  if (text.starts_with(kRequantized)) return ParseUniformArm(text, kRequantized, HandOver::kRepacked);
  const Result<FidelityArm> parsed = ParseFidelityArm(text);
  if (!parsed) {
    return Status(parsed.status().code(),
                  fmt::format("{}; also f16, text, requantized@BITS and cache:K/V", parsed.status().message()));
  }
  arm.name = parsed->name;
  if (parsed->way == FidelityWay::kCache) {
    arm.hand_over = HandOver::kSequence;
    arm.keys = parsed->keys;
    arm.values = parsed->values;
    return arm;
  }
  if (parsed->way != FidelityWay::kCard) return InvalidArm(text, "is of eval fidelity only");
  QKV_RETURN_IF_ERROR(CheckCard(text, parsed->card));
  arm.card = parsed->card;
  return arm;
}

void ApplyChainArm(const ChainArm& arm, HopRequest* request) {
  request->hand_over = arm.hand_over;
  request->session.cache_type_k = arm.keys;
  request->session.cache_type_v = arm.values;
  request->packs = {arm.card.pack};
  // An answer of few words may leave no choice; the chain goes on all the same.
  request->packs[0].may_lack_choice = true;
  request->probe = Packs(arm.hand_over) && CountsProbe(arm.card.pack);
}

Status FitChainArm(const Session& session, ChainArm arm, HopRequest* request) {
  if (!Packs(arm.hand_over)) return {};
  QKV_RETURN_IF_ERROR(FitCardArm(session.identity(), session.state_layout().shapes, &arm.card));
  request->packs[0].layers = arm.card.pack.layers;
  return {};
}

}  // namespace qkvshare
