// Chains: a card, the card that it continues, and so on, back to one that starts a context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "card/card.h"
#include "qkvshare/status.h"

namespace qkvshare {

// Whether `child` continues `parent`: it names it, is of the same model, RoPE and layers, starts at a token that the
// parent has or that comes just after its last one, at the position after the one before, and has its profile where it
// says so. kMismatch.
Status CheckLink(const Card& parent, const Card& child);

struct ChainCard {
  std::string path;
  std::shared_ptr<const Card> card;
  bool found = false;  // beside the card that continues it; the others were given
};

// Opens the cards of these files, and puts before each delta card the cards that it continues, where they are not among
// those given: by content id, from the `*.card` files in the folder of the card that wants them (of equal ones the
// first by name), of which only the headers are read. The other cards keep their order; a parent that was given is
// expected just before the card that continues it, and where it is elsewhere, nothing is said here (PlaceCards refuses
// it).
//
// Errors name the files. As Card::Open; kNotFound (a parent that is not there: its content id, and who wants it), kIo
// (a folder that cannot be read), kCorrupt (parents that lead in a circle), kMismatch (CheckLink).
Result<std::vector<ChainCard>> OpenWithParents(const std::vector<std::string>& paths);

}  // namespace qkvshare
