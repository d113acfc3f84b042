#include "eval/facts_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace qkvshare {
namespace {

constexpr int kFewestFacts = 5, kMostFacts = 7;  // of a section, after its first sentence
constexpr int kMostFillers = 3;
constexpr size_t kTries = 100;  // for a name that is free, before names get longer

std::string Lower(std::string_view text) {
  std::string lower(text);
  lower[0] = static_cast<char>(lower[0] - 'A' + 'a');
  return lower;
}

}  // namespace

std::string FactsSection::Text(size_t count) const {
  std::string text = "## " + title + "\n";
  for (size_t i = 0; i < std::min(count, sentences.size()); ++i) {
    if (i > 0) text += ' ';
    text += sentences[i].text;
  }
  return text + "\n\n";
}

std::string FactsWriter::Person() {
  std::string name;
  do {
    // One after the other: the order of arguments is the compiler's.
    name = OneOf(GivenNames());
    name += ' ';
    name += OneOf(NameStarts());
    name += OneOf(FamilyEnds());
  } while (names_.size() < kTries * kTries && !names_.insert(name).second);
  return name;
}

std::string FactsWriter::PlaceName() {
  constexpr std::string_view kBefore[] = {"",       "",       "",     "",     "",       "",
                                          "Upper ", "Lower ", "New ", "Old ", "Great ", "Little "};
  std::string name, middle;
  for (size_t tries = 1; name.empty() || !names_.insert(name).second; ++tries) {
    name = OneOf(kBefore);
    name += OneOf(NameStarts());
    name += middle;
    name += OneOf(PlaceEnds());
    if (tries % kTries == 0) middle += Lower(OneOf(NameStarts()));
  }
  return name;
}

std::string FactsWriter::Draw(std::string_view slot) {
  constexpr std::string_view kLetters = "ABCDEFGHKLMNPRSTVWXZ";
  if (const auto words = SlotWords(slot); !words.empty()) return std::string(OneOf(words));
  if (slot == "p" || slot == "q") return Person();
  if (slot == "other") return keepers_.empty() ? Person() : keepers_[random_.Below(keepers_.size())];
  if (slot == "town") return PlaceName();
  if (slot == "n") return fmt::format("{}", random_.Within(31, 998));
  if (slot == "m") return fmt::format("{}", random_.Within(3, 29));
  if (slot == "year") return fmt::format("{}", random_.Within(1871, 1998));
  if (slot == "time") {
    const int hour = random_.Within(5, 22), minute = 5 * random_.Within(0, 11);
    return fmt::format("{:02}:{:02}", hour, minute);
  }
  if (slot == "code") {
    const char first = kLetters[random_.Below(kLetters.size())], second = kLetters[random_.Below(kLetters.size())];
    return fmt::format("{}{}-{}", first, second, random_.Within(101, 989));
  }
  return "";
}

std::string FactsWriter::Fill(std::string_view text, Values* values) {
  std::string out;
  while (!text.empty()) {
    const size_t open = std::min(text.find('{'), text.size());
    out += text.substr(0, open);
    text.remove_prefix(open);
    if (text.empty()) break;
    const size_t close = text.find('}');
    const std::string_view slot = text.substr(1, close - 1);
    auto found = values->find(slot);
    if (found == values->end()) found = values->emplace(slot, Draw(slot)).first;
    out += found->second;
    text.remove_prefix(close + 1);
  }
  return out;
}

FactsSentence FactsWriter::Write(const FactWords& words, const Values& of_section) {
  Values values = of_section;
  FactsSentence sentence;
  sentence.text = Fill(words.sentences[random_.Below(2)], &values);
  sentence.question = Fill(words.question, &values);
  sentence.answer = Fill(words.answer, &values);
  return sentence;
}

FactsSection FactsWriter::Next() {
  const std::string kind(OneOf(PlaceKinds())), place = PlaceName(), keeper = Person();
  const Values of_section = {{"here", "the " + kind}, {"Here", "The " + kind}, {"at", place}, {"keeper", keeper}};
  FactsSection section;
  section.title = fmt::format("The {} at {}", kind, place);
  const auto facts = static_cast<size_t>(random_.Within(kFewestFacts, kMostFacts));
  std::vector<size_t> order(FactTemplates().size());
  std::iota(order.begin(), order.end(), size_t{0});
  random_.Shuffle(&order);
  for (size_t i = 0; i < facts; ++i) section.sentences.push_back(Write(FactTemplates()[order[i]], of_section));
  for (int i = random_.Within(1, kMostFillers); i > 0; --i) {
    section.sentences.push_back({std::string(OneOf(FillerSentences())), "", ""});
  }
  random_.Shuffle(&section.sentences);
  const auto& first = KeeperTemplates();
  section.sentences.insert(section.sentences.begin(), Write(first[random_.Below(first.size())], of_section));
  keepers_.push_back(keeper);
  return section;
}

std::vector<std::string> FactsWriter::Fillers() {
  std::vector<std::string> fillers(FillerSentences().begin(), FillerSentences().end());
  random_.Shuffle(&fillers);
  return fillers;
}

}  // namespace qkvshare
