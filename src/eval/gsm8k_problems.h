// Problems of GSM8K, as its files have them: JSON lines of a question and a worked answer that ends with "#### NUMBER".
// Source: Cobbe et al., "Training verifiers to solve math word problems" (arXiv 2110.14168).
#pragma once

#include <string>
#include <vector>

#include "qkvshare/status.h"

namespace qkvshare {

struct GsmProblem {
  std::string question;
  // Worked, without the calculator's annotations (<<48/2=24>>); its last line is "#### " and the number as written.
  std::string answer;
  std::string number;  // of that line, without commas: digits, with a sign or a decimal point where it has one
};

// In the order of the file. kNotFound, kIo; kOutOfRange past 64 MiB; kInvalidArgument names the line that is no
// problem, or says that there is none.
Result<std::vector<GsmProblem>> ReadGsmProblems(const std::string& path);

}  // namespace qkvshare
