// Seeded text with facts that cannot be guessed: a survey of invented places, in titled sections. Names are made of
// syllables and numbers are drawn, so that an answer is in the text or nowhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/facts_words.h"
#include "eval/seeded_random.h"

namespace qkvshare {

struct FactsSentence {
  std::string text;
  // What it answers; both empty where it tells nothing.
  std::string question, answer;
};

struct FactsSection {
  std::string title;  // "The mill at Corvale": no two of a document are alike
  std::vector<FactsSentence> sentences;

  // "## Title\n", the first `count` sentences on one line, and a blank line.
  std::string Text(size_t count) const;
};

// Writes one document, section by section. A section does not depend on how many follow. Questions name the place, so
// that they have one answer in the document.
class FactsWriter {
 public:
  FactsWriter(uint64_t seed, uint64_t document) : random_(seed, document) {}

  FactsSection Next();
  // Sentences that tell nothing in particular, all of them, in an order of this document.
  std::vector<std::string> Fillers();

 private:
  using Values = std::map<std::string, std::string, std::less<>>;  // of slots

  FactsSentence Write(const FactWords& words, const Values& of_section);
  std::string Fill(std::string_view text, Values* values);
  std::string Draw(std::string_view slot);
  std::string Person();
  std::string PlaceName();
  std::string_view OneOf(std::span<const std::string_view> words) { return words[random_.Below(words.size())]; }

  SeededRandom random_;
  std::set<std::string> names_;       // taken
  std::vector<std::string> keepers_;  // of the sections so far
};

}  // namespace qkvshare
