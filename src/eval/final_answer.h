// What number an answer in GSM8K's form comes to.
#pragma once

#include <optional>
#include <string>

namespace qkvshare {

// What marks the line of the result.
inline constexpr const char* kAnswerMarker = "####";

// The number after the last marker that has one, up to the end of its line: the first one there, or where there are
// equals signs the first after the last of them that has one (but for remarks as in "12 (= 1 dozen)"). It may have a
// sign, thousands commas, decimals, and around it whatever is no digit
// ("$", "%", "**", "\boxed{", units). "3/4" is a fraction. Nothing where there is no marker, or no number after it.
std::optional<double> FinalAnswer(const std::string& text);

// Whether two numbers are the same but for how decimals are rounded.
bool SameNumber(double a, double b);

// A number as written in a file: "1234", "-0.5". Nothing where it is none, or where more follows.
std::optional<double> NumberOf(const std::string& text);

}  // namespace qkvshare
