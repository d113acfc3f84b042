// Whether attention may read cards where they lie in a context: what rules it out, and a self-test.
#pragma once

#include "qkvshare/status.h"

namespace qkvshare {

class CardContext;

// In an empty context of which all else is known. Leaves rows and a card in its first sequence. kUnsupported says what
// rules it out, from what is known to what has to be tried.
Status CheckFused(CardContext* context);

}  // namespace qkvshare
