#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "card/card.h"
#include "cli/commands.h"
#include "cli/policy_flags.h"
#include "cli/terminal.h"

namespace qkvshare::cli {
namespace {

struct InfoFlags {
  std::string card;
  bool json = false;
};

// Of each layer, both shape and what differs from layer to layer.
nlohmann::json LayersJson(const Card& card) {
  nlohmann::json layers = nlohmann::json::array();
  for (size_t i = 0; i < card.layers(); ++i) {
    const LayerAdjustment adjustment = card.plan().adjustment(i);
    layers.push_back({{"kv_heads", card.shape(i).kv_heads},
                      {"key_dim", card.shape(i).key_dim},
                      {"value_dim", card.shape(i).value_dim},
                      {"key_adjustment", adjustment.keys},
                      {"value_adjustment", adjustment.values},
                      {"window", card.window(i)}});
  }
  return layers;
}

nlohmann::json InfoJson(const Card& card) {
  nlohmann::json object = nlohmann::json::parse(CardInfoToJson(card.info()));
  const RopeParams& rope = card.identity().first_rope;
  object.update({{"content_id", ToHex(card.content_id())},
                 {"model_fingerprint", ToHex(card.identity().model)},
                 {"rope_fingerprint", ToHex(card.identity().rope)},
                 {"rope", {{"dims", rope.dims}, {"mode", rope.mode}, {"base", rope.base}, {"scale", rope.scale}}},
                 {"tokens", card.tokens()},
                 {"position_offset", card.position_offset()},
                 {"hop", card.hop()},
                 {"exact_tokens", card.exact_tokens()},
                 {"protected_tokens", card.protected_tokens()},
                 {"anchors", card.anchors().size()},
                 {"profile", ProfileText(card)},
                 {"parent", card.has_parent() ? ToHex(card.parent()) : ""},
                 {"first_token", card.first_token()},
                 {"layer_details", LayersJson(card)},
                 {"layers", card.layers()},
                 {"kv_heads", card.shape(0).kv_heads},
                 {"key_dim", card.shape(0).key_dim},
                 {"value_dim", card.shape(0).value_dim},
                 {"levels", LevelsJson(card)},
                 {"code_bits", card.average_code_bits()},
                 {"total_bits", card.average_total_bits()},
                 {"file_bytes", card.file_bytes()},
                 {"payload_bytes", card.payload_bytes()},
                 {"f16_bytes", card.fp16_bytes()}});
  return object;
}

void PrintInfo(const Card& card) {
  const CardInfo& info = card.info();
  const auto line = [](const char* label, const std::string& value) {
    fmt::print("{:<12} {}\n", label, Printable(value));
  };
  line("content id", ToHex(card.content_id()));
  line("model", fmt::format("{} ({}), fingerprint {}", info.model_name, info.architecture,
                            ToHex(card.identity().model).substr(0, 16)));
  line("shape", fmt::format("{} layers, {} KV heads, key size {}, value size {}", card.layers(), card.shape(0).kv_heads,
                            card.shape(0).key_dim, card.shape(0).value_dim));
  const RopeParams& rope = card.identity().first_rope;
  line("RoPE", fmt::format("base {}, scale {}, {} dims, fingerprint {}", rope.base, rope.scale, rope.dims,
                           ToHex(card.identity().rope).substr(0, 16)));
  line("tokens", fmt::format("{}, from position {}", card.tokens(), card.position_offset()));
  if (card.has_parent()) {
    const size_t beside = info.context.size();
    const std::string last_of = beside == 0 ? "" : fmt::format(" the last of {} cards side by side,", beside);
    line("parent",
         fmt::format("{},{} whose tokens come before: {} in all", ToHex(card.parent()), last_of, card.first_token()));
  }
  line("sender", fmt::format("{}, hop {}, policy {}", info.sender, card.hop(), info.policy));
  std::string features;
  for (const std::string& feature : info.features) features += (features.empty() ? "" : ", ") + feature;
  if (!features.empty()) line("features", features);
  if (card.protected_tokens() > 0) line("protected", fmt::format("the last {} tokens", card.protected_tokens()));
  line("profile", ProfileText(card));
  const auto count = [&](auto has) {
    size_t layers = 0;
    for (size_t i = 0; i < card.layers(); ++i) layers += has(i) ? 1 : 0;
    return layers;
  };
  const size_t adjusted = count([&](size_t i) { return card.plan().adjustment(i) != LayerAdjustment(); });
  const size_t windowed = count([&](size_t i) { return card.window(i) > 0; });
  if (adjusted > 0) line("adjusted", fmt::format("{} layers have other widths than the levels say", adjusted));
  if (windowed > 0) line("windows", fmt::format("{} layers have a sliding window", windowed));
  line("cache", info.cache_type);
  line("rounding", info.rounding);
  line("written", fmt::format("{} by {}", info.created, info.writer));
  line("size", fmt::format("{} ({} payload); F16: {}, {:.2f} times as much", FormatBytes(card.file_bytes()),
                           FormatBytes(card.payload_bytes()), FormatBytes(card.fp16_bytes()),
                           static_cast<double>(card.fp16_bytes()) / static_cast<double>(card.file_bytes())));
  line("bits",
       fmt::format("{:.3f} a channel, {:.3f} with everything", card.average_code_bits(), card.average_total_bits()));
  fmt::print("\nlevel   tokens\n");
  for (size_t i = 0; i < card.plan().levels.size(); ++i) {
    const uint32_t tokens = card.order().level_size[i];
    fmt::print("{:<7} {:>6}  {:#<{}}\n", LevelName(card.plan().levels[i]), tokens, "", 1 + tokens * 40 / card.tokens());
  }
  fmt::print("\nsegment     owner       first  tokens\n");
  for (const Segment& segment : info.segments) {
    fmt::print("{:<11} {:<10} {:>6} {:>7}{}\n", Printable(segment.role), Printable(segment.owner), segment.first_token,
               segment.tokens, segment.parent.empty() ? "" : "  from " + Printable(segment.parent.substr(0, 16)));
  }
}

Status RunInfo(const InfoFlags& flags) {
  QKV_ASSIGN_OR_RETURN(const Card card, Card::Open(flags.card));
  if (flags.json) {
    PrintJson(InfoJson(card));
  } else {
    PrintInfo(card);
  }
  return {};
}

Status RunVerify(const InfoFlags& flags) {
  QKV_ASSIGN_OR_RETURN(const Card card, Card::Open(flags.card));
  QKV_RETURN_IF_ERROR(card.VerifyDigests());
  QKV_ASSIGN_OR_RETURN(const Kernels* kernels, SelectKernels());
  for (size_t layer = 0; layer < card.layers(); ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      std::vector<Half> rows(card.tokens() * card.shape(layer).row_values(side));
      QKV_RETURN_IF_ERROR(card.Unpack(*kernels, layer, side, card.tokens(), rows.data()));
    }
  }
  if (flags.json) {
    PrintJson({{"card", flags.card}, {"valid", true}, {"content_id", ToHex(card.content_id())}});
  } else {
    fmt::print("{}: valid, content id {}\n", flags.card, ToHex(card.content_id()));
  }
  return {};
}

Command AddCardCommand(CLI::App* app, const char* footer, Status (*run)(const InfoFlags&)) {
  auto flags = std::make_shared<InfoFlags>();
  app->footer(footer);
  app->add_option("card", flags->card, "The card")->required();
  app->add_flag("--json", flags->json, "Report as JSON");
  return [flags, run] {
    const Status status = run(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace

Command AddInfo(CLI::App* app) { return AddCardCommand(app, "Example:\n  qkvshare info report.card", RunInfo); }

Command AddVerify(CLI::App* app) { return AddCardCommand(app, "Example:\n  qkvshare verify report.card", RunVerify); }

}  // namespace qkvshare::cli
