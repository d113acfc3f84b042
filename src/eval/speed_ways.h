// The ways to go on from the context of a speed measurement: receivers that have it already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/speed_context.h"
#include "qkvshare/status.h"
#include "runtime/plain_context.h"
#include "runtime/session.h"

namespace qkvshare {

struct SpeedWay {
  std::string name;
  std::unique_ptr<Session> session;     // null: llama.cpp alone
  std::unique_ptr<PlainContext> plain;  // else null
  size_t depth = 0;                     // tokens of the context

  // Back to the context alone.
  Status Restart() const { return session != nullptr ? session->Truncate(depth) : plain->Truncate(depth); }
  Status Prefill(std::span<const int32_t> tokens) const {
    return session != nullptr ? session->Prefill(tokens, {}) : plain->Prefill(tokens);
  }
};

class SpeedWays {
 public:
  explicit SpeedWays(const SpeedContext& context) : context_(context) {}

  // Makes it where it is asked for first, which takes a while. The pointer is good until the next call.
  Result<const SpeedWay*> Find(const std::string& name);
  // Makes it anew.
  Result<const SpeedWay*> Renew(const std::string& name);

 private:
  Result<SpeedWay> Make(const std::string& name) const;

  const SpeedContext& context_;
  std::vector<SpeedWay> ways_;
};

// Of kF16Way, kQ8Way and kQ4Way.
CacheType CacheTypeOf(const std::string& way);

}  // namespace qkvshare
