#include "eval/prompt_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "runtime/prompt.h"

namespace qkvshare {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBytes = size_t{1} << 26;

Status Invalid(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

// The text of a member, which may be missing.
Result<std::string> TextOf(const Json& object, const char* key) {
  if (!object.contains(key)) return std::string();
  if (!object[key].is_string()) return Invalid(fmt::format("\"{}\" is no text", key));
  return object[key].get<std::string>();
}

// kInvalidArgument for a member that nothing would be done with.
template <size_t N>
Status CheckMembers(const Json& object, const std::array<std::string_view, N>& known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      return Invalid(fmt::format("unknown member \"{}\"; choose from {}", key, fmt::join(known, ", ")));
  }
  return {};
}

class LineReader {
 public:
  LineReader(const Model& model, size_t number) : model_(model), number_(number) {}

  Result<EvalPrompt> Read(const std::string& line) const {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return Invalid("it is no JSON object");
    QKV_RETURN_IF_ERROR(CheckMembers(json, std::array<std::string_view, 3>{"id", "context", "turns"}));
    EvalPrompt prompt;
    QKV_ASSIGN_OR_RETURN(prompt.id, TextOf(json, "id"));
    if (prompt.id.empty()) prompt.id = fmt::format("prompt {}", number_);
    if (!json.contains("context")) return Invalid("it has no \"context\"");
    QKV_RETURN_IF_ERROR(ReadContext(json["context"], &prompt));
    if (!json.contains("turns") || !json["turns"].is_array() || json["turns"].empty())
      return Invalid("\"turns\" is no list of turns");
    for (const Json& turn : json["turns"]) QKV_RETURN_IF_ERROR(ReadTurn(turn, &prompt));
    return prompt;
  }

 private:
  std::vector<int32_t> Tokens(const std::string& text, bool first) const {
    return text.empty() ? std::vector<int32_t>() : model_.Tokenize(text, /*add_special=*/first);
  }

  Status ReadContext(const Json& context, EvalPrompt* prompt) const {
    if (context.is_string()) {
      prompt->context = Tokens(context.get<std::string>(), true);
      return {};
    }
    if (!context.is_array()) return Invalid("\"context\" is neither a text nor a list of sections");
    for (const Json& section : context) {
      if (!section.is_object()) return Invalid("a section is no object with \"role\" and \"text\"");
      QKV_RETURN_IF_ERROR(CheckMembers(section, std::array<std::string_view, 2>{"role", "text"}));
      QKV_ASSIGN_OR_RETURN(const std::string role, TextOf(section, "role"));
      QKV_ASSIGN_OR_RETURN(const std::string text, TextOf(section, "text"));
      const std::vector<int32_t> tokens = Tokens(text, prompt->context.empty());
      if (role.empty() || tokens.empty()) return Invalid("a section lacks \"role\" or \"text\"");
      prompt->segments.push_back(
          {role, "", "", static_cast<uint32_t>(prompt->context.size()), static_cast<uint32_t>(tokens.size())});
      prompt->context.insert(prompt->context.end(), tokens.begin(), tokens.end());
    }
    return {};
  }

  Status ReadTurn(const Json& given, EvalPrompt* prompt) const {
    const Json turn = given.is_string() ? Json{{"turn", given}} : given;
    if (!turn.is_object()) return Invalid("a turn is neither a text nor an object");
    QKV_RETURN_IF_ERROR(
        CheckMembers(turn, std::array<std::string_view, 6>{"id", "kind", "instruction", "turn", "answer", "roles"}));
    Continuation& continuation = prompt->continuations.emplace_back();
    QKV_ASSIGN_OR_RETURN(continuation.id, TextOf(turn, "id"));
    QKV_ASSIGN_OR_RETURN(continuation.kind, TextOf(turn, "kind"));
    if (continuation.id.empty()) continuation.id = std::to_string(prompt->continuations.size());
    if (continuation.kind.empty()) continuation.kind = "turn";
    for (const auto& [key, to] : {std::pair{"instruction", &continuation.instruction},
                                  std::pair{"turn", &continuation.turn}, std::pair{"answer", &continuation.answer}}) {
      QKV_ASSIGN_OR_RETURN(const std::string text, TextOf(turn, key));
      *to = Tokens(text, false);
    }
    if (!turn.contains("roles")) return {};
    if (!turn["roles"].is_array()) return Invalid("\"roles\" is no list of texts");
    for (const Json& role : turn["roles"]) {
      if (!role.is_string()) return Invalid("\"roles\" is no list of texts");
      continuation.roles.push_back(role.get<std::string>());
    }
    return {};
  }

  const Model& model_;
  const size_t number_;
};

}  // namespace

Result<std::vector<EvalPrompt>> ReadPromptFile(const Model& model, const std::string& path) {
  QKV_ASSIGN_OR_RETURN(const std::string text, ReadText(path, kMaxBytes));
  if (const Status status = CheckUtf8(text); !status.ok())
    return Invalid(fmt::format("{}: {}", path, status.message()));
  std::vector<EvalPrompt> prompts;
  size_t number = 0;
  for (const std::string& line : Split(text, '\n')) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<EvalPrompt> prompt = LineReader(model, prompts.size() + 1).Read(line);
    if (!prompt) return Invalid(fmt::format("{}: line {}: {}", path, number, prompt.status().message()));
    prompts.push_back(std::move(*prompt));
  }
  if (prompts.empty()) return Invalid(path + ": there are no prompts in it");
  return prompts;
}

}  // namespace qkvshare
