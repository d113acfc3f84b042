// Where something stands in a file that people write, and errors that say so.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "qkvshare/status.h"

namespace qkvshare {

// Both from 1; columns count bytes. Line 0: not known.
struct Place {
  uint32_t line = 0;
  uint32_t column = 0;

  friend bool operator==(const Place&, const Place&) = default;
};

// "FILE:LINE:COLUMN: what".
inline Status ErrorAt(const std::string& file, Place place, const std::string& what,
                      StatusCode code = StatusCode::kInvalidArgument) {
  if (place.line == 0) return {code, fmt::format("{}: {}", file, what)};
  return {code, fmt::format("{}:{}:{}: {}", file, place.line, place.column, what)};
}

// The beginning of a text that may be long, for an error; cut between characters.
inline std::string Excerpt(const std::string& text) {
  size_t end = 40;
  if (text.size() <= end) return text;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace qkvshare
