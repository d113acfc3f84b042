// What someone may have meant who wrote a name that is not known.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace qkvshare {

// The known name from which `text` differs least, by at most two characters left out, added or exchanged, but not by
// all it has. The first of several; empty where none is that near.
std::string NearestName(std::string_view text, std::span<const std::string_view> known);

// "; did you mean 'NAME'?", or nothing where no name is near.
std::string DidYouMean(std::string_view text, std::span<const std::string_view> known);

}  // namespace qkvshare
