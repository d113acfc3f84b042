// YAML, and so JSON, as a tree of values that know where they stand.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "agents/place.h"
#include "qkvshare/status.h"

namespace qkvshare {

struct YamlKey {
  std::string text;
  Place place;
};

struct YamlNode {
  enum class Kind {
    kNull,    // nothing, or null
    kPlain,   // a text without quotes, which may stand for a number or a flag
    kQuoted,  // a text in quotes, or a block of text
    kList,
    kMap,
  };

  Kind kind = Kind::kNull;
  Place place{1, 1};
  std::string text{};             // of both kinds of text
  std::vector<YamlNode> items{};  // of a list, and the values of a map
  std::vector<YamlKey> keys{};    // of a map: one for each item, no two alike

  bool is_text() const { return kind == Kind::kPlain || kind == Kind::kQuoted; }
};

inline constexpr size_t kMaxYamlBytes = 1'000'000;
inline constexpr size_t kMaxYamlDepth = 16;
inline constexpr size_t kMaxYamlValues = 100'000;

// One document; an empty one is kNull. kInvalidArgument, with file, line and column: not YAML, not UTF-8, control
// characters, a key that is there twice or is no text, and what is not read: anchors and aliases, tags, a second
// document. kOutOfRange past the limits above.
Result<YamlNode> ParseYaml(const std::string& text, const std::string& file);

}  // namespace qkvshare
