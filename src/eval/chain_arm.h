// Arms of `eval chain`: what a hop gets of the hops before it.
#pragma once

#include <string>

#include "eval/card_arm.h"
#include "eval/hop_request.h"
#include "qkvshare/status.h"
#include "runtime/cache_type.h"
#include "runtime/session.h"

namespace qkvshare {

struct ChainArm {
  std::string name;  // as in results; of the same arm always the same
  HandOver hand_over = HandOver::kCards;
  CardArm card;                                                // kCards, kRepacked
  CacheType keys = CacheType::kF16, values = CacheType::kF16;  // of the context's own cache

  // The name, as that of a file.
  std::string FileName() const;
};

// A card as ParseCardArm takes it (attached, no max_bytes, no oracle); "requantized@BITS[,KEY=VALUE...]": uniform, all
// packed anew in each hop; "f16"; "text"; "cache:K/V": the sequence goes on in a cache of these types. kInvalidArgument
// says what there is, or which option does not count here.
Result<ChainArm> ParseChainArm(const std::string& text);

// "WAY@BITS[,KEY=VALUE...]": uniform cards, which are handed over in this way. Named as it is written, without what is
// as by default. Errors as ParseChainArm.
Result<ChainArm> ParseUniformArm(const std::string& text, const std::string& way, HandOver hand_over);

// What the arm says of a request, but for the widths of layers. A policy that counts probe queries gets those of the
// next turn, which is known.
void ApplyChainArm(const ChainArm& arm, HopRequest* request);
// The widths of layers, once there is a session. Errors as FitCardArm.
Status FitChainArm(const Session& session, ChainArm arm, HopRequest* request);

}  // namespace qkvshare
