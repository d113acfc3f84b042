// Several ways in which agents of an example answer one problem, made by rule from its worked answer.
#pragma once

#include <optional>
#include <string>

#include "eval/gsm8k_problems.h"

namespace qkvshare {

// Each ends with a line of #### and a number.
struct ExampleAnswers {
  std::string in_words;      // as GSM8K has it
  std::string with_slip;     // the same, but that the last computation, and so the answer, comes to another number
  std::string in_equations;  // only what is computed, an equation a line
};

// Nothing where the worked answer does not allow it: its last equation must be annotated, stand in the text, and come
// to the answer, a whole number of at most nine digits that is not negative.
std::optional<ExampleAnswers> ExampleAnswersOf(const GsmProblem& problem);

}  // namespace qkvshare
