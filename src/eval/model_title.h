// What a model is called in reports.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace qkvshare {

// Of the header of a file of results: the name of `qkvshare models list` where the fingerprint is known, else the name
// that the model's file gives; empty where there is none.
std::string ModelTitle(const nlohmann::ordered_json& header);

}  // namespace qkvshare
