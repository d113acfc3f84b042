// The flags of `pack` that say how bits are given to tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "card/card.h"
#include "card/card_info.h"
#include "qkvshare/status.h"
#include "quant/anchor.h"
#include "runtime/sender.h"

namespace CLI {
class App;
}  // namespace CLI

namespace qkvshare::cli {

struct PolicyFlags {
  std::string policy = "uniform";
  std::string features = "default";
  std::string levels;
  std::string rounding = "auto";
  std::string layer_bits;
  std::string profile;
  std::string controller;
  std::vector<std::string> readers;  // NAME[@DISTANCE][:ROLE,ROLE]
  std::vector<std::string> anchor_cards;
  double bits = 4;
  size_t max_bytes = 0;
  size_t protect_last = 0;
  // Count for some policies only, so that it matters whether they were given.
  std::optional<std::string> control_of;
  std::optional<double> alpha;
  std::optional<uint64_t> seed;

  void AddTo(CLI::App* app);
  // All but sender, segments, anchors and layers, checked.
  Result<PackOptions> Options() const;
  // Files that packing reads: the profile, the controller if it is a file, and the cards with anchors.
  std::vector<std::string> InputFiles() const;
  // --layer-bits of a model with this many layers; empty without the flag.
  Result<std::vector<LayerAdjustment>> Layers(size_t layers) const;
  // The anchors of the cards, as far as those begin with these tokens. kInvalidArgument where a card has none there.
  Status AddAnchors(std::span<const int32_t> tokens, std::vector<Anchor>* anchors) const;
  // Adds the readers to the segments that have their roles. Where there are no segments and a reader takes any, one
  // segment of role "prompt" is made. kInvalidArgument where a reader finds no segment.
  Status AddReaders(const std::string& owner, size_t tokens, std::vector<Segment>* segments) const;
};

// [{"key_bits", "value_bits", "tokens"}], of pack and info.
nlohmann::json LevelsJson(const Card& card);

// "none", "measured", "inherited", or "static" and the profile's id.
std::string ProfileText(const Card& card);

}  // namespace qkvshare::cli
