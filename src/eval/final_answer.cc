#include "eval/final_answer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

namespace qkvshare {
namespace {

constexpr std::string_view kMarker = kAnswerMarker;
constexpr std::string_view kMinusSign = "\xE2\x88\x92";  // U+2212

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool DigitAt(std::string_view text, size_t at) { return at < text.size() && IsDigit(text[at]); }

// Whether a number begins here: a digit, or a point before one.
bool BeginsAt(std::string_view text, size_t at) {
  return IsDigit(text[at]) || (text[at] == '.' && DigitAt(text, at + 1));
}

// Whether exactly three digits come next, so that a comma before them parts thousands.
bool ThousandsAt(std::string_view text, size_t at) {
  return DigitAt(text, at) && DigitAt(text, at + 1) && DigitAt(text, at + 2) && !DigitAt(text, at + 3);
}

// The digits that begin at *at, without commas; *at moves past them.
std::string TakeDigits(std::string_view text, size_t* at) {
  std::string digits;
  bool point = false;
  for (; *at < text.size(); ++*at) {
    const char c = text[*at];
    if (IsDigit(c) || (c == '.' && !point && DigitAt(text, *at + 1))) {
      point = point || c == '.';
      digits += c;
    } else if (c != ',' || point || !ThousandsAt(text, *at + 1)) {
      break;
    }
  }
  return digits;
}

// Whether a minus stands before the number, with nothing but a currency or markup between, and after no word or number.
bool IsNegative(std::string_view before) {
  while (!before.empty() && (before.ends_with('$') || before.ends_with('*') || before.ends_with(' '))) {
    before.remove_suffix(1);
  }
  const size_t length = before.ends_with('-') ? 1 : before.ends_with(kMinusSign) ? kMinusSign.size() : 0;
  before.remove_suffix(length);
  const char last = before.empty() ? ' ' : before.back();
  const bool letter = (last >= 'A' && last <= 'Z') || (last >= 'a' && last <= 'z');
  return length > 0 && !letter && !IsDigit(last);
}

std::optional<double> FirstNumber(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && !BeginsAt(text, at)) ++at;
  if (at == text.size()) return std::nullopt;
  const bool negative = IsNegative(text.substr(0, at));
  std::optional<double> number = NumberOf(TakeDigits(text, &at));
  if (number && at + 1 < text.size() && text[at] == '/' && BeginsAt(text, at + 1)) {
    ++at;
    const std::optional<double> divisor = NumberOf(TakeDigits(text, &at));
    if (divisor && *divisor != 0) *number /= *divisor;
  }
  if (number && negative) *number = -*number;
  return number;
}

// Whether an equals sign there parts a term from its value: one that opens a remark, as in "12 (= 1 dozen)", does not.
bool HasTermBefore(std::string_view line, size_t equals) {
  const size_t last = line.substr(0, equals).find_last_not_of(" \t");
  return last != std::string_view::npos && line[last] != '(';
}

std::optional<double> NumberOfLine(std::string_view line) {
  for (size_t end = line.size(); end > 0;) {
    const size_t equals = line.rfind('=', end - 1);
    if (equals == std::string_view::npos) break;
    if (HasTermBefore(line, equals)) {
      if (const std::optional<double> number = FirstNumber(line.substr(equals + 1, end - equals - 1))) return number;
    }
    end = equals;
  }
  return FirstNumber(line);
}

}  // namespace

std::optional<double> FinalAnswer(const std::string& text) {
  for (size_t end = text.size(); end >= kMarker.size();) {
    const size_t marker = text.rfind(kMarker, end - kMarker.size());
    if (marker == std::string::npos) break;
    std::string_view line = std::string_view(text).substr(marker + kMarker.size());
    line.remove_prefix(std::min(line.find_first_not_of(" \t\r\n"), line.size()));
    line = line.substr(0, line.find('\n'));
    if (const std::optional<double> number = NumberOfLine(line)) return number;
    end = marker;
  }
  return std::nullopt;
}

bool SameNumber(double a, double b) { return std::abs(a - b) <= 1e-6 * std::max(1.0, std::abs(b)); }

std::optional<double> NumberOf(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace qkvshare
