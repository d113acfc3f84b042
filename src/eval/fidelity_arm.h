// Arms of `eval fidelity`: ways in which a receiver gets the context before its turn.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "eval/card_arm.h"
#include "qkvshare/status.h"
#include "runtime/cache_type.h"

namespace qkvshare {

enum class FidelityWay : uint8_t {
  kCard,
  kRoundTrip,  // the context's rows through llama.cpp's cache types and back, then an F16 cache
  kCache,      // a context with caches of these types throughout
  kFloor,      // the FP16 hand-over, suffix in pieces of 16 tokens
};

struct FidelityArm {
  std::string name;  // as in results
  FidelityWay way = FidelityWay::kCard;
  CardArm card;                      // kCard
  CacheType keys = CacheType::kF16;  // kRoundTrip, kCache
  CacheType values = CacheType::kF16;
};

// As ParseCardArm takes it, or "roundtrip:K/V" and "cache:K/V" with names of cache types (one name: of both), or
// "floor". kInvalidArgument says what there is.
Result<FidelityArm> ParseFidelityArm(const std::string& text);
// kInvalidArgument also where two are the same, or there are none.
Result<std::vector<FidelityArm>> ParseFidelityArms(std::span<const std::string> texts);

// What is compared where nothing is asked for.
std::vector<std::string> DefaultFidelityArms();

// All that it stands for, for the header of results.
nlohmann::ordered_json FidelityArmJson(const FidelityArm& arm);

}  // namespace qkvshare
