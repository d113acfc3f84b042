// What receivers do with a document of facts: their instructions, known beforehand, and their turns.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "eval/facts_text.h"
#include "eval/seeded_random.h"

namespace qkvshare {

struct Receiver {
  std::string kind;         // "question", "instruction", "part", as Continuation's
  std::string instruction;  // its role prompt, 20 to 60 tokens; empty: none is known
  std::string turn;
  std::string answer;  // empty: not known
  std::string role;    // the title of the one section that it is there for; empty: all
};

// At most `count` questions, spread over the facts of the sections; without instructions, answers known.
std::vector<Receiver> MakeQuestions(const std::vector<FactsSection>& sections, size_t count, SeededRandom* random);

// Ten receivers: four with a question each, three with a task for all of the text, three for one section: two tasks and
// a question. Fewer where there are not that many facts. Instructions and questions differ between the receivers of a
// document.
std::vector<Receiver> MakeReceivers(const std::vector<FactsSection>& sections, SeededRandom* random);

}  // namespace qkvshare
