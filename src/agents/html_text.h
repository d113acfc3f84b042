// Anything as text on a web page, and numbers for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace qkvshare {

// For elements and for attributes in quotes. Control characters other than tabs and line ends become their pictures
// (U+2400...), and what is not valid UTF-8 becomes U+FFFD.
std::string HtmlText(std::string_view text);
// The bytes of one token, so that all of it is seen: what has no shape of its own, and bytes that are no character, as
// marks in <s>.
std::string HtmlToken(std::string_view bytes);

// Of a text that is longer than `bytes`: where it may be cut, at most there, and not within a character.
size_t CutBefore(std::string_view text, size_t bytes);

std::string CountText(uint64_t count);  // "1,940"

}  // namespace qkvshare
