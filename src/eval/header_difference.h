// What is said where the headers of two files of results, or of a file and of what is asked for now, differ.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace qkvshare {

// What each of the two is called in the text; empty: they are told apart by their order.
struct DifferenceNames {
  std::string first, second;
};

// Of one member: '"generate" differs: predict 320 there, 64 now (-n)'. Of objects and lists it is what differs in them;
// of digests no value is shown; in brackets the flag that it comes from, or what it is of.
std::string DifferenceText(const std::string& member, const nlohmann::ordered_json& first,
                           const nlohmann::ordered_json& second, const DifferenceNames& names = {});

}  // namespace qkvshare
