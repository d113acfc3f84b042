#include "agents/yaml_map.h"

#include <algorithm>
#include <iterator>

#include "agents/nearest_name.h"

namespace qkvshare {
namespace {

using Kind = YamlNode::Kind;

// What is there, in an error.
std::string Found(const YamlNode& node) {
  switch (node.kind) {
    case Kind::kNull: return "nothing";
    case Kind::kPlain: return "'" + Excerpt(node.text) + "'";
    case Kind::kQuoted: return "the text \"" + Excerpt(node.text) + "\"";
    case Kind::kList: return "a list";
    case Kind::kMap: return "a map";
  }
  return "nothing";
}

std::string Listed(std::span<const std::string_view> words) {
  std::string list;
  for (const std::string_view word : words) list += fmt::format("{}{}", list.empty() ? "" : ", ", word);
  return list;
}

Status WrongType(const std::string& file, const YamlNode& node, std::string_view key, const std::string& wanted) {
  return ErrorAt(file, node.place, fmt::format("'{}' is {}, but found {}", key, wanted, Found(node)));
}

}  // namespace

Status CheckYamlKind(const std::string& file, const YamlNode& node, YamlNode::Kind kind, const std::string& wanted) {
  if (node.kind == kind) return {};
  return ErrorAt(file, node.place, fmt::format("expected {}, but found {}", wanted, Found(node)));
}

Result<YamlMap> YamlMap::Of(const std::string& file, const YamlNode& node, const std::string& what,
                            std::span<const std::string_view> known) {
  QKV_RETURN_IF_ERROR(CheckYamlKind(file, node, Kind::kMap, what + ", a map of " + Listed(known)));
  for (const YamlKey& key : node.keys) {
    if (std::find(known.begin(), known.end(), key.text) != known.end()) continue;
    const std::string nearest = DidYouMean(key.text, known);
    return ErrorAt(file, key.place,
                   fmt::format("{} has no '{}'{}", what, Excerpt(key.text),
                               nearest.empty() ? "; it has " + Listed(known) : nearest));
  }
  return YamlMap(&file, &node, what);
}

const YamlNode* YamlMap::Find(std::string_view key) const {
  const auto found =
      std::find_if(node_->keys.begin(), node_->keys.end(), [&](const YamlKey& k) { return k.text == key; });
  return found == node_->keys.end() ? nullptr : &node_->items[static_cast<size_t>(found - node_->keys.begin())];
}

Result<const YamlNode*> YamlMap::Need(std::string_view key) const {
  if (const YamlNode* node = Find(key); node != nullptr) return node;
  return ErrorAt(*file_, node_->place, fmt::format("{} needs '{}'", what_, key));
}

Status YamlMap::Text(std::string_view key, std::string* out) const {
  const YamlNode* node = Find(key);
  if (node == nullptr) return {};
  if (!node->is_text()) return WrongType(*file_, *node, key, "a text");
  *out = node->text;
  return {};
}

Status YamlMap::Flag(std::string_view key, bool* out) const {
  const YamlNode* node = Find(key);
  if (node == nullptr) return {};
  if (node->kind != Kind::kPlain || (node->text != "true" && node->text != "false")) {
    return WrongType(*file_, *node, key, "true or false");
  }
  *out = node->text == "true";
  return {};
}

Status YamlMap::WrongNumber(std::string_view key, const YamlNode& node, bool whole, const std::string& low,
                            const std::string& high) const {
  return WrongType(*file_, node, key, fmt::format("a {}number from {} to {}", whole ? "whole " : "", low, high));
}

Status YamlMap::Choice(std::string_view key, std::span<const std::string_view> words, size_t* out) const {
  const YamlNode* node = Find(key);
  if (node == nullptr) return {};
  const auto found = std::find(words.begin(), words.end(), node->text);
  if (!node->is_text() || found == words.end()) return WrongType(*file_, *node, key, "one of " + Listed(words));
  *out = static_cast<size_t>(found - words.begin());
  return {};
}

Result<std::vector<const YamlNode*>> YamlMap::Texts(std::string_view key, size_t most) const {
  std::vector<const YamlNode*> texts;
  const YamlNode* node = Find(key);
  if (node == nullptr) return texts;
  if (node->is_text()) return std::vector<const YamlNode*>{node};
  const std::string wanted = "a text or a list of texts";
  if (node->kind != Kind::kList) return WrongType(*file_, *node, key, wanted);
  for (const YamlNode& item : node->items) {
    if (!item.is_text()) return WrongType(*file_, item, key, wanted);
    texts.push_back(&item);
  }
  if (!texts.empty() && texts.size() <= most) return texts;
  return WrongType(*file_, *node, key, fmt::format("a list of 1 to {} texts", most));
}

}  // namespace qkvshare
