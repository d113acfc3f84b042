// Chains: a card, the card that it continues, and so on, back to one that starts a context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "card/card.h"
#include "qkvshare/status.h"

namespace qkvshare {

// Whether `child` continues `parent`: it names it, is of the same model, RoPE and layers, and has its profile where it
// says so. Where it says nothing of its context, it starts at a token that the parent has or that comes just after its
// last one, at the position after the one before; else the parent has the tokens that the context is said to have of
// it. kMismatch.
Status CheckLink(const Card& parent, const Card& child);

struct ChainCard {
  std::string path;
  std::shared_ptr<const Card> card;
  std::string wanted_by;  // the file of the card that it was found beside, which needs it; empty: it was given
};

// Opens the cards of these files, and puts before each delta card what came before it, in order, where it is not among
// those given or found already: the cards of its context where it says what that is, else its parent, and what came
// before that. They are found by content id, among the `*.card` files in the folder of the card that wants them (of
// equal ones the first by name), of which only the headers are read. The given cards keep their order; where one comes
// after a card that needs it, nothing is said here (PlaceCards refuses it).
//
// Errors name the files. As Card::Open; kNotFound (a card that is not there: its content id, and who wants it), kIo
// (a folder that cannot be read), kCorrupt (parents that lead in a circle), kMismatch (CheckLink).
Result<std::vector<ChainCard>> OpenWithParents(const std::vector<std::string>& paths);

}  // namespace qkvshare
