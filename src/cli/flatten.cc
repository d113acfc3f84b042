#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "card/card.h"
#include "card/card_chain.h"
#include "card/card_flatten.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/policy_flags.h"
#include "cli/terminal.h"
#include "runtime/sender.h"

namespace qkvshare::cli {
namespace {

struct FlattenFlags {
  std::vector<std::string> cards;
  std::string output;
  bool verify = false;
  bool json = false;
};

void PrintReport(const FlattenFlags& flags, const std::vector<std::string>& paths, const Card& card) {
  if (flags.json) {
    PrintJson({{"card", flags.output},
               {"content_id", ToHex(card.content_id())},
               {"cards", paths},
               {"tokens", card.tokens()},
               {"levels", LevelsJson(card)},
               {"profile", ProfileText(card)},
               {"file_bytes", card.file_bytes()},
               {"code_bits", card.average_code_bits()},
               {"total_bits", card.average_total_bits()}});
    return;
  }
  fmt::print("{}: {} tokens of {} cards, {}, {:.2f} bits a channel, {:.2f} with everything, content id {}\n",
             flags.output, card.tokens(), paths.size(), FormatBytes(card.file_bytes()), card.average_code_bits(),
             card.average_total_bits(), ToHex(card.content_id()));
}

Status RunFlatten(const FlattenFlags& flags) {
  QKV_RETURN_IF_ERROR(CheckTarget(flags.output, flags.cards));
  QKV_RETURN_IF_ERROR(CheckReplaceableCard(flags.output));
  QKV_ASSIGN_OR_RETURN(const std::vector<ChainCard> chain, OpenWithParents(flags.cards));
  std::vector<std::shared_ptr<const Card>> cards;
  std::vector<std::string> paths;
  for (const ChainCard& link : chain) {
    if (flags.verify) QKV_RETURN_IF_ERROR(link.card->VerifyDigests());
    cards.push_back(link.card);
    paths.push_back(link.path);
  }
  QKV_RETURN_IF_ERROR(CheckTarget(flags.output, paths));  // one that was found
  const auto threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  QKV_ASSIGN_OR_RETURN(const PackedCard flat, FlattenCards(cards, threads));
  QKV_RETURN_IF_ERROR(flat.Write(flags.output));
  QKV_ASSIGN_OR_RETURN(const Card written, Card::Open(flags.output));  // what is reported is what was written
  if (!flags.json) PrintNote(FoundText(chain));
  PrintReport(flags, paths, written);
  return {};
}

}  // namespace

Command AddFlatten(CLI::App* app) {
  auto flags = std::make_shared<FlattenFlags>();
  app->footer(
      "Example:\n  qkvshare flatten answer.card -o both.card\n"
      "The cards in order, each continuing the one before. Those that are missing are looked for by content id among "
      "the\n"
      "*.card files beside the card that continues them. Codes are copied: nothing is quantized again.");
  app->add_option("card", flags->cards, "The cards, or the last one alone")->required()->check(NotEmpty());
  app->add_option("-o,--output", flags->output, "The card to write")->required()->check(NotEmpty());
  app->add_flag("--verify", flags->verify, "Also check the cards' digests (always done for other users' cards)");
  app->add_flag("--json", flags->json, "Report as JSON");
  return [flags] {
    const Status status = RunFlatten(*flags);
    return status.ok() ? static_cast<int>(kSuccess) : ReportError(status);
  };
}

}  // namespace qkvshare::cli
