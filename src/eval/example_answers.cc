#include "eval/example_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "eval/final_answer.h"

namespace qkvshare {
namespace {

constexpr size_t kMostDigits = 9;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsWhole(const std::string& number) {
  return !number.empty() && number.size() <= kMostDigits && std::all_of(number.begin(), number.end(), IsDigit);
}

// A carry too many, or where there is none a miscount.
std::string WrongNumber(const std::string& number) {
  int64_t value = 0;
  std::from_chars(number.data(), number.data() + number.size(), value);
  return std::to_string(value + (value >= 10 ? 10 : 1));
}

std::string Ending(const std::string& number) { return fmt::format("{} {}", kAnswerMarker, number); }

// "24+6=30" as "24+6 = 30".
std::string Spaced(const std::string& equation) {
  const size_t at = equation.rfind('=');
  return fmt::format("{} = {}", equation.substr(0, at), equation.substr(at + 1));
}

// Where the last equation of the text has its result, `number`; npos where it has another.
size_t ResultAt(const std::string& text, const std::string& number) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos) return std::string::npos;
  const size_t at = text.find_first_not_of(" $", equals + 1);
  if (at == std::string::npos || text.compare(at, number.size(), number) != 0) return std::string::npos;
  const size_t after = at + number.size();
  const bool goes_on =
      after < text.size() && (IsDigit(text[after]) || text[after] == ',' ||
                              (text[after] == '.' && after + 1 < text.size() && IsDigit(text[after + 1])));
  return goes_on ? std::string::npos : at;
}

}  // namespace

std::optional<ExampleAnswers> ExampleAnswersOf(const GsmProblem& problem) {
  const size_t marker = problem.answer.rfind(kAnswerMarker);
  const bool equations =
      std::all_of(problem.equations.begin(), problem.equations.end(),
                  [](const std::string& equation) { return equation.find('=') != std::string::npos; });
  if (marker == std::string::npos || problem.equations.empty() || !equations || !IsWhole(problem.number))
    return std::nullopt;
  const std::string& last = problem.equations.back();
  std::string body = problem.answer.substr(0, marker);
  const size_t at = ResultAt(body, problem.number);
  if (last.substr(last.rfind('=') + 1) != problem.number || at == std::string::npos) return std::nullopt;

  ExampleAnswers answers;
  answers.in_words = problem.answer;
  for (const std::string& equation : problem.equations) answers.in_equations += Spaced(equation) + "\n";
  answers.in_equations += Ending(problem.number);
  if (answers.in_equations == answers.in_words) return std::nullopt;
  const std::string wrong = WrongNumber(problem.number);
  answers.with_slip = body.replace(at, problem.number.size(), wrong) + Ending(wrong);
  return answers;
}

}  // namespace qkvshare
