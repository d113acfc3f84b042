// For tests: small cards, and the two ends of pipes and sockets.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "card/card.h"
#include "card/card_test_util.h"
#include "card/card_writer.h"
#include "handoff/descriptor.h"

namespace qkvshare::handoff_test {

// Of `tokens` tokens in two layers; other numbers, other cards.
inline std::shared_ptr<const Card> SomeCard(uint32_t number, size_t tokens = 20) {
  const card_test::SyntheticKv kv(tokens, {{2, 32, 32}, {1, 64, 64}}, number);
  const KeyProfiles profiles = MeasureKeyProfiles(kv.view(), kSinkTokens, 1);
  const Result<PackedCard> packed =
      PackCard(kv.view(), card_test::MixedPlan(tokens), profiles, card_test::Content(tokens), 1);
  return std::make_shared<const Card>(*Card::FromBytes(packed->Bytes()));
}

struct Ends {
  Descriptor reading, writing;
};

inline Ends Pipe() {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

inline Ends Sockets() {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return {};
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace qkvshare::handoff_test
