// What `run` and its chat share.
#pragma once

#include <string>
#include <vector>

#include "card/card.h"
#include "cli/options.h"
#include "qkvshare/status.h"
#include "runtime/generate.h"

namespace qkvshare::cli {

struct RunFlags {
  ModelFlags model;
  PromptFlags prompt;
  std::string card;
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
bool EndsInAnswer(const Card& card);

// -o, --bits: what can be known to be wrong before the work.
Status CheckOutput(const RunFlags& flags);
// --card, --verify.
Result<Card> OpenCard(const RunFlags& flags);
// Generates, printing the text as it comes. Stops where standard output is lost.
Result<Generation> PrintAnswer(const GenerateOptions& generate, Session* session);
// Packs all of the session as the card that -o names.
Status WriteCard(const RunFlags& flags, const Session& session, std::vector<Segment> segments);

}  // namespace qkvshare::cli
