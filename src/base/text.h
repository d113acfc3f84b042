// Texts that people write: lists.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace qkvshare {

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
