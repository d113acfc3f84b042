// A context that is handed over while it is still being read: closed blocks, each a delta card of those before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "handoff/card_channel.h"
#include "qkvshare/status.h"
#include "runtime/card_list.h"
#include "runtime/sender.h"
#include "runtime/session.h"

namespace qkvshare {

inline constexpr uint32_t kBlockTokens = 256;

struct BlockTimes {
  size_t blocks = 0, bytes = 0;
  int64_t prefill_us = 0;
  int64_t pack_us = 0;       // all blocks
  int64_t last_pack_us = 0;  // of these, what came after the last token was read
  int64_t send_us = 0;
};

// Prefills the tokens and sends each block of kBlockTokens of them (the last one may have fewer) as soon as it is read.
// What the session holds before must be in attached cards. A block does not depend on what follows it: policy uniform,
// means and scales of options.profile or of the cards before, keys rounded by the queries of the block alone. segments:
// of all of the tokens. The sink is neither finished nor, where this fails, given up.
//
// kInvalidArgument: no tokens, rows of its own in the session, another policy, max_bytes or protected tokens, no
// profile; else as Session::Prefill, PackRows and CardSink::Send.
Status PrefillAndSend(std::span<const int32_t> tokens, const PackOptions& options, Session* session, CardSink* sink,
                      BlockTimes* times, const std::function<void(size_t, size_t)>& progress = {});

// Takes all cards that come, up to the end, as a list that can be injected. received: is called with each (its tokens
// end where the list does); may be empty. Errors as CardSource::Next and AppendCard, and the list has what came before.
Status ReceiveCards(CardSource* source, std::vector<CardPart>* parts,
                    const std::function<void(const CardPart&)>& received = {});

}  // namespace qkvshare
