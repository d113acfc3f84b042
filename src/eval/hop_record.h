// What one hop of one chain did: plain data, and a line of a result file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "qkvshare/status.h"

namespace qkvshare {

struct HopRecord {
  std::string chain;          // id
  size_t hop = 0;             // from 0
  uint32_t taken_tokens = 0;  // that were there before
  uint32_t read_tokens = 0;   // of the prompt; 0: it did not fit, so that nothing more happens in this chain
  // Sampled, without the end token: those that ended the answer included.
  std::vector<int32_t> tokens;
  int32_t end_token = -1;
  std::string text;  // as far as it counts; in a file, bytes that are not UTF-8 are replaced
  std::string stop;  // StopReasonName
  // Of the card that is handed on; 0: there is none.
  uint32_t card_tokens = 0;  // this hop's, or all so far where it is packed anew
  uint64_t card_bytes = 0;
  double code_bits = 0, total_bits = 0;  // a channel: of codes, and of all bytes
  // us, in order. Those of decoding together are the whole group's.
  std::vector<std::pair<std::string, int64_t>> stages;

  friend bool operator==(const HopRecord&, const HopRecord&) = default;
};

// As people count: "hop 1" is the first.
std::string HopName(size_t hop);

// As a line of a file of results. All but "stages_us" follows from the input.
nlohmann::ordered_json HopJson(const HopRecord& record);
// kCorrupt where it is none.
Result<HopRecord> ParseHop(const nlohmann::ordered_json& json);

}  // namespace qkvshare
