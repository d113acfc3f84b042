// What the text with facts is made of. Slots in braces are filled per sentence; those with the same name within a fact
// have one value:
//   {p} {q}  persons that occur nowhere else    {keeper}  who runs the place, named in its first sentence
//   {other}  who runs an earlier place; a new person in the first section
//   {here}   "the mill"                         {at}      "Corvale"
//   {town}   another place's name               {n} {m}   numbers from 31 to 998, from 3 to 29
//   {year} {day} {month} {time} {code} {colour} {item} {animal} {job}
#pragma once

#include <span>
#include <string_view>

namespace qkvshare {

struct FactWords {
  std::string_view sentences[2];  // two ways to say it
  std::string_view question;
  std::string_view answer;
};

std::span<const FactWords> FactTemplates();
std::span<const FactWords> KeeperTemplates();  // for the first sentence of a section
std::span<const std::string_view> FillerSentences();

std::span<const std::string_view> PlaceKinds();  // "mill"
std::span<const std::string_view> GivenNames();  // of persons
std::span<const std::string_view> NameStarts();  // first syllables of family and place names
std::span<const std::string_view> FamilyEnds();  // last syllables
std::span<const std::string_view> PlaceEnds();
std::span<const std::string_view> SlotWords(
    std::string_view slot);  // of day, month, colour, item, animal, job; or none

}  // namespace qkvshare
