// Cards as arms of evaluations: how one is packed and taken, by a short text that also is its name in results.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "card/card_info.h"
#include "qkvshare/status.h"
#include "runtime/inject.h"
#include "runtime/sender.h"

namespace qkvshare {

struct CardArm {
  std::string name;  // of the same arm always the same
  PackOptions pack;  // with the profile, but without the widths of layers
  // Policy topology by all queries of the receiver, which nobody can know before: what there is to gain.
  bool oracle = false;
  bool oracle_of_turn = false;  // the oracle knows what the receiver reads, but not what it answers
  std::string layer_bits;       // as ParseLayerBits takes it; empty: none
  InjectMode inject = InjectMode::kFused;

  // Whether its card depends on what is known of the receiver.
  bool NeedsReceiver() const;
  // Whether one feature of that kind is looked at.
  bool Uses(Feature feature) const { return NeedsReceiver() && !oracle && pack.features.Has(feature); }
};

// POLICY@BITS[,KEY=VALUE...], "exact" for uniform@16, and "oracle@BITS". Without @BITS where max_bytes is given.
//
//   alpha=SHARE features=NAME+NAME seed=N control_of=POLICY    as the flags of `pack`; features: default, full, -NAME
//   too levels=K4V2/K4V4 protect=TOKENS controller=NAME or FILE max_bytes=N                with / between levels
//   layers=0-2:k=1/v=1;20:v=-1 as --layer-bits, with / for the comma profile=FILE rounding=queries|nearest
//   inject=fused|restore sees=all|turn (of oracle: turn and answer, or the turn alone)
//
// Defaults are those of `pack`; cards are attached. Of oracle, alpha is 0: its card goes by the receiver alone.
// kInvalidArgument names an unknown or repeated key, a value that is none, or an option that the arm would pass over;
// as OpenStaticProfile.
Result<CardArm> ParseCardArm(const std::string& text);

// Where the model is known: the widths of its layers. kInvalidArgument as ParseLayerBits; kMismatch as
// CheckProfileFits.
Status FitCardArm(const ModelIdentity& identity, const std::vector<LayerShape>& shapes, CardArm* arm);

// All that it stands for, for the header of results.
nlohmann::ordered_json CardArmJson(const CardArm& arm);

}  // namespace qkvshare
