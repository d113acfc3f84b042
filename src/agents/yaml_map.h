// Typed access to a map of a YAML file. Every error names file, line and column, and what would be right.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "agents/yaml_node.h"
#include "qkvshare/status.h"

namespace qkvshare {

// References the file's name and the node.
class YamlMap {
 public:
  // kInvalidArgument where the node is no map, or has a key that is not known. what: "an agent".
  static Result<YamlMap> Of(const std::string& file, const YamlNode& node, const std::string& what,
                            std::span<const std::string_view> known);

  // nullptr where the key is not there.
  const YamlNode* Find(std::string_view key) const;
  // kInvalidArgument where it is not there.
  Result<const YamlNode*> Need(std::string_view key) const;

  // These leave *out as it is where the key is not there. kInvalidArgument where its value is of another type, or not
  // among these.
  Status Text(std::string_view key, std::string* out) const;
  Status Flag(std::string_view key, bool* out) const;
  // A number from low to high: whole ones for whole types.
  template <typename T>
  Status Number(std::string_view key, T low, T high, T* out) const;
  // One of these words, by its index.
  Status Choice(std::string_view key, std::span<const std::string_view> words, size_t* out) const;

  // The texts of a list, or the one text: empty where the key is not there. kInvalidArgument for anything else, and for
  // more than `most`.
  Result<std::vector<const YamlNode*>> Texts(std::string_view key, size_t most) const;

 private:
  YamlMap(const std::string* file, const YamlNode* node, std::string what)
      : file_(file), node_(node), what_(std::move(what)) {}
  Status WrongNumber(std::string_view key, const YamlNode& node, bool whole, const std::string& low,
                     const std::string& high) const;

  const std::string* file_;
  const YamlNode* node_;
  std::string what_;
};

// kInvalidArgument where the node is of another kind. wanted: "a list of edges".
Status CheckYamlKind(const std::string& file, const YamlNode& node, YamlNode::Kind kind, const std::string& wanted);

template <typename T>
Status YamlMap::Number(std::string_view key, T low, T high, T* out) const {
  const YamlNode* node = Find(key);
  if (node == nullptr) return {};
  T value{};
  const char* end = node->text.data() + node->text.size();
  const auto [stop, error] = std::from_chars(node->text.data(), end, value);
  const bool good = node->kind == YamlNode::Kind::kPlain && error == std::errc() && stop == end;
  if (!good || !(value >= low && value <= high)) {
    return WrongNumber(key, *node, std::is_integral_v<T>, fmt::format("{}", low), fmt::format("{}", high));
  }
  *out = value;
  return {};
}

}  // namespace qkvshare
