#include "eval/gsm8k_problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/text.h"

namespace qkvshare {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 26;
constexpr std::string_view kMarker = "\n#### ";

void RemoveAnnotations(std::string* text) {
  for (size_t at = 0; (at = text->find("<<", at)) != std::string::npos;) {
    const size_t end = text->find(">>", at);
    if (end == std::string::npos) break;
    text->erase(at, end + 2 - at);
  }
}

bool IsNumber(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const size_t point = std::min(text.find('.'), text.size());
  const std::string_view whole = text.substr(0, point);
  const std::string_view rest = text.substr(std::min(point + 1, text.size()));
  return !whole.empty() && std::all_of(whole.begin(), whole.end(), is_digit) &&
         (point == text.size() || !rest.empty()) && std::all_of(rest.begin(), rest.end(), is_digit);
}

// Empty where the answer has no last line with a number.
std::string FinalNumber(const std::string& answer) {
  const size_t at = answer.rfind(kMarker);
  if (at == std::string::npos) return "";
  std::string number = answer.substr(at + kMarker.size());
  number.erase(std::remove(number.begin(), number.end(), ','), number.end());
  return IsNumber(number) ? number : "";
}

// Of one line; an empty question where it is none.
GsmProblem Parse(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* key) {
    const bool there = json.is_object() && json.contains(key) && json[key].is_string();
    return there ? json[key].get<std::string>() : std::string();
  };
  GsmProblem problem = {text("question"), text("answer"), ""};
  RemoveAnnotations(&problem.answer);
  problem.number = FinalNumber(problem.answer);
  return problem.number.empty() ? GsmProblem() : problem;
}

}  // namespace

Result<std::vector<GsmProblem>> ReadGsmProblems(const std::string& path) {
  QKV_ASSIGN_OR_RETURN(const std::string content, ReadText(path, kMaxBytes));
  std::vector<GsmProblem> problems;
  size_t number = 0;
  for (const std::string& line : Split(content, '\n')) {
    ++number;
    if (line.empty() || line == "\r") continue;
    GsmProblem problem = Parse(line);
    if (problem.question.empty()) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: line {} is no problem of GSM8K: {{\"question\": \"...\", \"answer\": \"... "
                                "#### NUMBER\"}}; see https://github.com/openai/grade-school-math",
                                path, number));
    }
    problems.push_back(std::move(problem));
  }
  if (problems.empty()) return Status(StatusCode::kInvalidArgument, path + ": there is no problem in it");
  return problems;
}

}  // namespace qkvshare
