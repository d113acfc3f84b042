#include "agents/html_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace qkvshare {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: no valid UTF-8
};

bool Continues(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// The character that a text, which is not empty, begins with. Source: the Unicode standard, table 3-7.
Character First(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if (!Continues(text[i])) return {};
    code = code << 6 | (static_cast<uint8_t>(text[i]) & 0x3FU);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (overlong || surrogate || code > 0x10FFFF) return {};
  return {code, bytes};
}

bool IsControl(uint32_t code) { return code < 0x20 || (code >= 0x7F && code < 0xA0); }

// Has no width, or turns the direction of what follows.
bool IsInvisible(uint32_t code) {
  const auto within = [code](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  return within(0x200B, 0x200F) || within(0x2028, 0x202E) || within(0x2060, 0x206F) || code == 0xFEFF || code == 0xAD;
}

std::string Picture(uint32_t control) {
  if (control == 0x7F) return "\u2421";
  return control < 0x20 ? std::string("\xE2\x90") + static_cast<char>(0x80 + control) : std::string(kReplacement);
}

void AppendEscaped(std::string_view character, std::string* out) {
  switch (character[0]) {
    case '&': *out += "&amp;"; break;
    case '<': *out += "&lt;"; break;
    case '>': *out += "&gt;"; break;
    case '"': *out += "&quot;"; break;
    case '\'': *out += "&#39;"; break;
    default: *out += character;
  }
}

void AppendVisible(std::string_view character, uint32_t code, std::string* out) {
  if (code == '\n') {
    *out += "<s>\u21B5</s>\n";
  } else if (code == '\t') {
    *out += "<s>\u21E5</s>\t";
  } else if (IsControl(code)) {
    *out += "<s>" + Picture(code) + "</s>";
  } else if (IsInvisible(code)) {
    *out += fmt::format("<s>U+{:04X}</s>", code);
  } else {
    AppendEscaped(character, out);
  }
}

}  // namespace

std::string HtmlText(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character first = First(text);
    const size_t bytes = std::max<size_t>(first.bytes, 1);
    const bool line_end = text[0] == '\r' && text.size() > 1 && text[1] == '\n';
    if (first.bytes == 0) {
      out += kReplacement;
    } else if (IsControl(first.code) && first.code != '\n' && first.code != '\t') {
      out += line_end ? "" : Picture(first.code);
    } else {
      AppendEscaped(text.substr(0, bytes), &out);
    }
    text.remove_prefix(bytes);
  }
  return out;
}

std::string HtmlToken(std::string_view bytes) {
  if (bytes.empty()) return "<s>\u2205</s>";
  std::string out;
  while (!bytes.empty()) {
    const Character first = First(bytes);
    if (first.bytes == 0) {
      out += fmt::format("<s>{:02X}</s>", static_cast<uint8_t>(bytes[0]));
    } else {
      AppendVisible(bytes.substr(0, first.bytes), first.code, &out);
    }
    bytes.remove_prefix(std::max<size_t>(first.bytes, 1));
  }
  return out;
}

size_t CutBefore(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text.size();
  size_t end = bytes;
  while (end > 0 && bytes - end < 4 && Continues(text[end])) --end;
  return end;
}

std::string CountText(uint64_t count) {
  std::string text = fmt::format("{}", count);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

}  // namespace qkvshare
