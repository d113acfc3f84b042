// Texts that people write: lists, numbers of things.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace qkvshare {

// "1 prompt", "3 prompts". one: a noun that takes an s.
inline std::string Counted(size_t count, const std::string& one) {
  return std::to_string(count) + ' ' + one + (count == 1 ? "" : "s");
}

// The pieces between separators: one more than there are separators, empty ones included.
inline std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> pieces;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(separator, start), text.size());
    pieces.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return pieces;
}

}  // namespace qkvshare
