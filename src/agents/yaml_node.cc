// The only file that includes yaml-cpp. Its events are used rather than its nodes: these give no places of keys, and
// follow aliases, by which a short file becomes an endless one.
#include "agents/yaml_node.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "runtime/prompt.h"

namespace qkvshare {
namespace {

Place PlaceOf(const YAML::Mark& mark) {
  if (mark.is_null()) return {};
  return {static_cast<uint32_t>(mark.line) + 1, static_cast<uint32_t>(mark.column) + 1};
}

// What ends the parsing, through yaml-cpp's own code.
struct Refusal : std::exception {
  Refusal(Place at, std::string text, StatusCode status = StatusCode::kInvalidArgument)
      : place(at), what_is_wrong(std::move(text)), code(status) {}

  Place place;
  std::string what_is_wrong;
  StatusCode code;
};

// yaml-cpp's versions name the type of this parameter differently.
template <typename Handler, typename Style>
Style StyleOf(void (Handler::*)(const YAML::Mark&, const std::string&, YAML::anchor_t, Style));
using Style = decltype(StyleOf(&YAML::EventHandler::OnMapStart));

class TreeBuilder : public YAML::EventHandler {
 public:
  YamlNode Take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) throw Refusal(PlaceOf(mark), "a second document starts here; leave it and the '---' out");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override { Add({Kind::kNull, PlaceOf(mark)}); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override { RefuseAnchor(mark); }
  void OnAnchor(const YAML::Mark& mark, const std::string& /*name*/) override { RefuseAnchor(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t /*anchor*/,
                const std::string& text) override {
    CheckTag(mark, tag);
    if (text.find('\0') != std::string::npos) throw Refusal(PlaceOf(mark), "a zero byte in a text; leave it out");
    Add({tag == "!" ? Kind::kQuoted : Kind::kPlain, PlaceOf(mark), text});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t /*anchor*/,
                       Style /*style*/) override {
    Open(mark, tag, Kind::kList);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t /*anchor*/, Style /*style*/) override {
    Open(mark, tag, Kind::kMap);
  }
  void OnMapEnd() override { Close(); }

 private:
  using Kind = YamlNode::Kind;

  // A list or map that is not complete yet. The node stays where it is until then: only the innermost one grows.
  struct Unfinished {
    YamlNode* node;
    std::unordered_map<std::string, Place> keys{};
  };

  [[noreturn]] static void RefuseAnchor(const YAML::Mark& mark) {
    throw Refusal(PlaceOf(mark),
                  "anchors and aliases (&name, *name) are not read; write the value out, or put the "
                  "text in quotes");
  }
  static void CheckTag(const YAML::Mark& mark, const std::string& tag) {
    if (tag != "?" && tag != "!" && !tag.empty()) {
      throw Refusal(PlaceOf(mark), "tags (!name) are not read; leave it out, or put the text in quotes");
    }
  }

  void Open(const YAML::Mark& mark, const std::string& tag, Kind kind) {
    CheckTag(mark, tag);
    if (open_.size() == kMaxYamlDepth) {
      throw Refusal(PlaceOf(mark), fmt::format("lists and maps within each other more than {} deep", kMaxYamlDepth),
                    StatusCode::kOutOfRange);
    }
    open_.push_back({Add({kind, PlaceOf(mark)})});
  }
  void Close() { open_.pop_back(); }

  // Where the node is now; nullptr for a key.
  YamlNode* Add(YamlNode node) {
    if (++values_ > kMaxYamlValues) {
      throw Refusal(node.place, fmt::format("more than {} values", kMaxYamlValues), StatusCode::kOutOfRange);
    }
    if (open_.empty()) return &(root_ = std::move(node));
    YamlNode& parent = *open_.back().node;
    if (parent.kind == Kind::kMap && parent.keys.size() == parent.items.size()) {
      AddKey(std::move(node));
      return nullptr;
    }
    // yaml-cpp says of a value that is not there where the next one is.
    if (parent.kind == Kind::kMap && node.kind == Kind::kNull) node.place = parent.keys.back().place;
    return &parent.items.emplace_back(std::move(node));
  }

  void AddKey(YamlNode key) {
    if (key.kind == Kind::kNull) throw Refusal(key.place, "a name is missing before ':'");
    if (!key.is_text()) throw Refusal(key.place, "a list or map stands where a name belongs; write NAME: VALUE");
    const auto [first, is_new] = open_.back().keys.emplace(key.text, key.place);
    if (!is_new) {
      throw Refusal(key.place, fmt::format("'{}' is there twice, first on line {}; leave one out or rename it",
                                           Excerpt(key.text), first->second.line));
    }
    open_.back().node->keys.push_back({std::move(key.text), key.place});
  }

  YamlNode root_;
  std::vector<Unfinished> open_;
  size_t values_ = 0;
  int documents_ = 0;
};

// yaml-cpp takes some control characters for the end of the file, and replaces what is not UTF-8.
Status CheckCharacters(const std::string& text, const std::string& file) {
  const auto is_wrong = [](char c) {
    return (static_cast<uint8_t>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
  };
  uint32_t line = 1;
  for (size_t start = 0; start <= text.size(); ++line) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string piece = text.substr(start, end - start);
    if (const auto found = std::find_if(piece.begin(), piece.end(), is_wrong); found != piece.end()) {
      const auto column = static_cast<uint32_t>(found - piece.begin()) + 1;
      return ErrorAt(file, {line, column},
                     fmt::format("a control character (byte 0x{:02x}); leave it out", static_cast<uint8_t>(*found)));
    }
    if (const Status utf8 = CheckUtf8(piece); !utf8.ok()) return ErrorAt(file, {line, 1}, utf8.message());
    start = end + 1;
  }
  return {};
}

}  // namespace

Result<YamlNode> ParseYaml(const std::string& text, const std::string& file) {
  if (text.size() > kMaxYamlBytes) {
    return ErrorAt(file, {},
                   fmt::format("{} bytes, where {} are the most; keep long texts in files of their own", text.size(),
                               kMaxYamlBytes),
                   StatusCode::kOutOfRange);
  }
  QKV_RETURN_IF_ERROR(CheckCharacters(text, file));
  TreeBuilder builder;
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refusal& refusal) {
    return ErrorAt(file, refusal.place, refusal.what_is_wrong, refusal.code);
  } catch (const YAML::Exception& error) {
    return ErrorAt(file, PlaceOf(error.mark),
                   fmt::format("not YAML: {}; check indentation, colons and quotes", error.msg));
  } catch (const std::exception& error) {
    return ErrorAt(file, {}, fmt::format("not YAML: {}", error.what()));
  }
  return builder.Take();
}

}  // namespace qkvshare
