// JSON from files and other processes: parsed without exceptions, and only so deep that nothing recurses far.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace qkvshare {

inline constexpr int kMaxJsonDepth = 16;

// Discarded (is_discarded) where the text is no JSON. What lies deeper is left out.
inline nlohmann::json ParseShallow(const std::string& text) {
  const auto shallow = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) { return depth <= kMaxJsonDepth; };
  return nlohmann::json::parse(text, shallow, /*allow_exceptions=*/false);
}

}  // namespace qkvshare
