// What `run` and its chat share.
#pragma once

#include <string>
#include <vector>

#include "card/card.h"
#include "cli/options.h"
#include "qkvshare/status.h"
#include "runtime/card_list.h"
#include "runtime/generate.h"
#include "runtime/inject.h"

namespace qkvshare::cli {

struct RunFlags {
  ModelFlags model;
  PromptFlags prompt;
  std::vector<std::string> cards;
  InjectMode inject = InjectMode::kAuto;
  std::string output;
  std::string agent = "agent";
  double bits = 4;
  GenerateOptions generate;
  bool whole = false;
  bool verify = false;
  bool json = false;
  bool interactive = false;
};

// Role of the segments that a model wrote. One at the end leaves the assistant's turn open.
inline constexpr const char* kGeneratedRole = "generated";
bool EndsInAnswer(const std::vector<CardPart>& cards);

// -o, --bits: what can be known to be wrong before the work.
Status CheckOutput(const RunFlags& flags);
// --card, --verify: in order, each after the one before; with the parents that were found beside them, which are
// reported. kInvalidArgument where -o would overwrite one.
struct OpenedCards {
  std::vector<CardPart> parts;
  std::vector<std::string> paths;
};
Result<OpenedCards> OpenCards(const RunFlags& flags);
// Options of a session for these cards, as --inject says.
SessionOptions SessionFor(const RunFlags& flags, const std::vector<CardPart>& cards);
// Whether -o can be obeyed: what a restored card held must not be quantized again.
Status CheckDelta(const RunFlags& flags, const std::vector<CardPart>& cards, const Session& session);
// Segments of the cards' tokens, as they count in the whole context.
std::vector<Segment> SegmentsOfCards(const std::vector<CardPart>& cards);
// Generates, printing the text as it comes. Stops where standard output is lost.
Result<Generation> PrintAnswer(const GenerateOptions& generate, Session* session);
// Packs all of the session as the card that -o names.
Status WriteCard(const RunFlags& flags, const Session& session, std::vector<Segment> segments);

}  // namespace qkvshare::cli
