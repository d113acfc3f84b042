#include "eval/receivers.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

namespace qkvshare {
namespace {

constexpr size_t kQuestions = 4, kTasks = 3, kPartTasks = 2;

// {0}: title of a section.
struct TaskText {
  std::string_view instruction, turn;
};

constexpr std::string_view kQuestionInstructions[] = {
    ("You answer travellers at an information desk. Use only what the survey above says, and reply with nothing "
     "but the name, number, date or place that was asked for."),
    ("You check facts for a regional newspaper. Look up each question in the survey above and give the exact value "
     "as it is written there, without any other words."),
    ("You fill in forms from the survey above. Every field takes a single value: a person, a place, a number or a "
     "time. Copy it as it stands and add nothing."),
    ("You are an examiner, and the survey above is your key. When a question is read to you, state the right "
     "answer briefly, and only that answer."),
    ("You run a hotline for the district council. Callers have little time: find what they ask for in the survey "
     "above and tell them just that, in a few words."),
    ("You are a clerk who looks things up. Someone reads you a question about the survey above; you find the line "
     "that settles it and reply with the bare fact."),
};

constexpr TaskText kTasksOfAll[] = {
    {"You keep the books of the district. Only amounts of money and numbers of things matter to you; pass over "
     "people and stories in the survey above, and write your results as a list.",
     "List all amounts in crowns, each with the place that it belongs to."},
    {"You translate documents of the district into French for a partner town. Names stay as they are, numbers stay "
     "digits, and you write the translation only.",
     "Translate the first two sentences of the section \"{0}\"."},
    {"You prepare safety inspections. From the survey above you take what may be dangerous, broken or overdue, and "
     "you leave out everything that an inspector need not see.",
     "Write a checklist for the inspectors, one line for each thing to look at, with its place."},
    {"You keep the register of residents. From the survey above you note persons by their full name, together with "
     "what they do or have done, and nothing about buildings.",
     "List every person of the section \"{0}\" and of the section after it, one a line."},
    {"You write short news for the radio. Listeners know nothing of the survey above, so you say plainly what is "
     "going on, in spoken English, without headings.",
     "Write a report of four sentences on what the survey found."},
    {"You turn text into data for a program. Your output is JSON and nothing else: no comments, no explanation, "
     "keys in lower case, numbers as numbers.",
     "Give the section \"{0}\" as one object with all of its facts."},
    {"You plan day trips for a group of pensioners. You need opening days, times and ways from the survey above, "
     "and you think of those who walk slowly.",
     "Propose a trip to two of the places, with the times that matter and what to see there."},
    {"You are a historian of the district. From the survey above only years and what happened in them are of use "
     "to you, in the order of time.",
     "Make a timeline of all years that are mentioned."},
    {"You teach the fourth class of the village school. You make exercises from the survey above in simple words, "
     "so that the children have to look for the answers themselves.",
     "Write five quiz questions with their answers."},
    {"You are the district's lawyer. In the survey above you look for contracts, debts, leases and insurance, and "
     "for what might end up in court.",
     "Name the risks, most urgent first, with place and persons."},
    {"You are a librarian and index documents such as the survey above. An entry has a title, three keywords and "
     "nothing more; you do not judge.",
     "Write the entries for all sections."},
    {"You are a novelist who takes settings from real documents like the survey above. Your style is slow and "
     "exact, and you use true names and numbers.",
     "Write the opening of a story that is set in \"{0}\"."},
};

constexpr std::string_view kPartInstructions[] = {
    ("You are the caretaker of one place only. Of the survey above just the section \"{0}\" is about it: work with "
     "that section, and do not use what the others say."),
    ("Your desk is responsible for \"{0}\". Other desks have the other sections of the survey above, so leave "
     "those alone and rely on your own section."),
    ("You have been sent to review the section \"{0}\" of the survey above. Whatever stands in other sections does "
     "not count for your review."),
    ("A buyer is interested in \"{0}\" and has asked you for advice. Stick to that section of the survey above; "
     "the rest concerns other buyers."),
};

constexpr std::string_view kTasksOfPart[] = {
    "Summarize your section in two sentences.",
    "Which persons does your section name, and what does it say of each?",
    "Write a notice for the door with what visitors have to know.",
    "What has to be done next there, and who could do it?",
    "Write down all numbers of your section, each with what it stands for.",
    "Rewrite your section as a letter to its owner.",
};

std::string WithTitle(std::string_view text, const std::string& title) {
  return fmt::format(fmt::runtime(text), title);
}

// All of them in a random order: each is taken once, and again from the start where more are needed.
template <typename T>
std::vector<T> Shuffled(std::span<const T> items, SeededRandom* random) {
  std::vector<T> shuffled(items.begin(), items.end());
  random->Shuffle(&shuffled);
  return shuffled;
}

std::vector<const FactsSentence*> FactsOf(const FactsSection& section) {
  std::vector<const FactsSentence*> facts;
  for (const FactsSentence& sentence : section.sentences) {
    if (!sentence.question.empty()) facts.push_back(&sentence);
  }
  return facts;
}

Receiver PartOf(const FactsSection& section, std::string_view instruction, std::string turn, std::string answer) {
  return {"part", WithTitle(instruction, section.title), std::move(turn), std::move(answer), section.title};
}

// A question of one section that nobody asks yet: of a section that is drawn, or of the next that has one; none where
// all are asked.
std::vector<Receiver> MakePartQuestion(const std::vector<FactsSection>& sections, std::span<const Receiver> asked,
                                       std::string_view instruction, SeededRandom* random) {
  const size_t first = random->Below(sections.size());
  for (size_t i = 0; i < sections.size(); ++i) {
    const FactsSection& section = sections[(first + i) % sections.size()];
    std::vector<const FactsSentence*> facts = FactsOf(section);
    std::erase_if(facts, [&](const FactsSentence* fact) {
      return std::any_of(asked.begin(), asked.end(),
                         [&](const Receiver& other) { return other.turn == fact->question; });
    });
    if (facts.empty()) continue;
    const FactsSentence& fact = *facts[random->Below(facts.size())];
    return {PartOf(section, instruction, fact.question, fact.answer)};
  }
  return {};
}

std::vector<Receiver> MakeParts(const std::vector<FactsSection>& sections, std::span<const Receiver> asked,
                                SeededRandom* random) {
  std::vector<Receiver> parts;
  const auto instructions = Shuffled<std::string_view>(kPartInstructions, random);
  const auto tasks = Shuffled<std::string_view>(kTasksOfPart, random);
  for (size_t i = 0; i < kPartTasks; ++i) {
    const FactsSection& section = sections[random->Below(sections.size())];
    parts.push_back(PartOf(section, instructions[i], std::string(tasks[i]), ""));
  }
  const auto question = MakePartQuestion(sections, asked, instructions[kPartTasks], random);
  parts.insert(parts.end(), question.begin(), question.end());
  return parts;
}

}  // namespace

std::vector<Receiver> MakeQuestions(const std::vector<FactsSection>& sections, size_t count, SeededRandom* random) {
  std::vector<const FactsSentence*> facts;
  for (const FactsSection& section : sections) {
    const auto more = FactsOf(section);
    facts.insert(facts.end(), more.begin(), more.end());
  }
  count = std::min(count, facts.size());
  std::vector<Receiver> questions;
  for (size_t i = 0; i < count; ++i) {
    // One of each of `count` parts of about equal size.
    const size_t first = i * facts.size() / count, end = (i + 1) * facts.size() / count;
    const FactsSentence& fact = *facts[first + random->Below(end - first)];
    questions.push_back({"question", "", fact.question, fact.answer, ""});
  }
  return questions;
}

std::vector<Receiver> MakeReceivers(const std::vector<FactsSection>& sections, SeededRandom* random) {
  std::vector<Receiver> receivers = MakeQuestions(sections, kQuestions, random);
  const auto instructions = Shuffled<std::string_view>(kQuestionInstructions, random);
  for (size_t i = 0; i < receivers.size(); ++i) receivers[i].instruction = instructions[i];
  const auto tasks = Shuffled<TaskText>(kTasksOfAll, random);
  for (size_t i = 0; i < kTasks; ++i) {
    const std::string& title = sections[random->Below(sections.size())].title;
    receivers.push_back({"instruction", std::string(tasks[i].instruction), WithTitle(tasks[i].turn, title), "", ""});
  }
  const auto parts = MakeParts(sections, receivers, random);
  receivers.insert(receivers.end(), parts.begin(), parts.end());
  return receivers;
}

}  // namespace qkvshare
