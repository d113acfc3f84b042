#include "agents/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace qkvshare {
namespace {

constexpr size_t kFar = 3;

// The edit distance of two texts (Levenshtein), kFar or more where it is at least that.
size_t Distance(std::string_view a, std::string_view b) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) >= kFar) return kFar;
  std::vector<size_t> row(b.size() + 1);  // of the characters of a so far, to each beginning of b
  std::iota(row.begin(), row.end(), 0);
  for (const char c : a) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t exchanged = diagonal + (c == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({exchanged, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestName(std::string_view text, std::span<const std::string_view> known) {
  std::string_view nearest;
  size_t best = std::min(kFar, std::max<size_t>(text.size(), 1));
  for (const std::string_view name : known) {
    const size_t distance = Distance(text, name);
    if (distance >= best || distance >= name.size()) continue;
    best = distance;
    nearest = name;
  }
  return std::string(nearest);
}

std::string DidYouMean(std::string_view text, std::span<const std::string_view> known) {
  const std::string nearest = NearestName(text, known);
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

}  // namespace qkvshare
