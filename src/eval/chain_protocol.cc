#include "eval/chain_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "eval/example_answers.h"
#include "eval/final_answer.h"
#include "eval/seeded_random.h"
#include "runtime/prompt.h"

namespace qkvshare {
namespace {

// Streams of the seed.
constexpr uint64_t kProblemStream = 1, kExampleStream = 2;
// Bytes of question and answer: examples are to show the form, not to fill the context.
constexpr size_t kExampleBytes = 450;
constexpr uint32_t kContextStep = 256;
// Tokens by which a turn may be longer than it is after another answer, where tokens join over the seam.
constexpr size_t kSeamTokens = 4;

constexpr const char* kSystem =
    "You are an agent that solves word problems. Answer in short steps, one a line, and end with a line of #### and "
    "the "
    "number.";
// Of hop 1, 2, ...; then again from the first. "The same form" is what the examples show after the same words. The one
// that solves on its own is given the problem again.
constexpr size_t kSolver = 1;
constexpr std::array<const char*, 4> kTurns = {
    "You are the checker. Check the solution above, correct it where it is wrong, and write it again in the same form.",
    "You are another solver. Solve this problem on your own, in the same form.\n\n",
    "You are the reviewer. Compare the solutions above and write the right one again in the same form.",
    "You are the editor. Write the final solution of the problem again in the same form.",
};

Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }

std::vector<size_t> ShuffledIndices(size_t count, uint64_t seed, uint64_t stream) {
  std::vector<size_t> indices(count);
  std::iota(indices.begin(), indices.end(), size_t{0});
  SeededRandom(seed, stream).Shuffle(&indices);
  return indices;
}

struct ChainExample {
  std::string question;
  ExampleAnswers answers;
};

// The first `shots` of the shuffled ones that are short, can be said in several ways, and are none of the problems.
Result<std::vector<ChainExample>> ChooseExamples(const std::vector<GsmProblem>& examples,
                                                 const std::set<std::string>& asked, const ChainProtocol& protocol) {
  std::vector<ChainExample> chosen;
  for (const size_t index : ShuffledIndices(examples.size(), protocol.seed, kExampleStream)) {
    if (chosen.size() == protocol.shots) break;
    const GsmProblem& example = examples[index];
    if (example.question.size() + example.answer.size() > kExampleBytes || asked.contains(example.question)) continue;
    std::optional<ExampleAnswers> answers = ExampleAnswersOf(example);
    if (answers) chosen.push_back({example.question, std::move(*answers)});
  }
  if (chosen.size() == protocol.shots) return chosen;
  return Invalid(
      fmt::format("there are only {} examples of at most {} bytes that are none of the problems and end with "
                  "an equation of whole numbers, but {} are wanted: give more, or fewer --shots",
                  chosen.size(), kExampleBytes, protocol.shots));
}

std::string TurnOf(size_t agent, const std::string& question) {
  const size_t kind = agent % kTurns.size();
  return kind == kSolver ? kTurns[kind] + question : kTurns[kind];
}

// What the first agent says in an example, and what a later one does. No later answer repeats the first: examples that
// do would teach to copy. The checker finds a slip; the others say in equations what is there in words, or the reverse.
std::pair<std::string, std::string> AnswersOf(const ExampleAnswers& answers, size_t agent) {
  switch (agent % kTurns.size()) {
    case 0: return {answers.with_slip, answers.in_words};
    case 2: return {answers.in_equations, answers.in_words};
    default: return {answers.in_words, answers.in_equations};
  }
}

std::vector<ChatMessage> MessagesOf(const std::vector<ChainExample>& examples, const std::string& question) {
  std::vector<ChatMessage> messages = {{"system", kSystem}};
  for (size_t i = 0; i < examples.size(); ++i) {
    // Without a turn that shows it, later agents fall into a form of their own.
    const auto [first, later] = AnswersOf(examples[i].answers, i);
    messages.push_back({"user", examples[i].question});
    messages.push_back({"assistant", first});
    messages.push_back({"user", TurnOf(i, examples[i].question)});
    messages.push_back({"assistant", later});
  }
  messages.push_back({"user", question});
  return messages;
}

// Tokens of the longest chain, every answer as long as it may be.
Result<size_t> LongestChain(const Model& model, const HopRequest& request) {
  size_t longest = 0;
  for (const HopChain& chain : request.chains) {
    QKV_ASSIGN_OR_RETURN(const std::string prompt,
                         model.ApplyChatTemplate(chain.messages, /*add_generation_prompt=*/true));
    size_t tokens = model.Tokenize(prompt, /*add_special=*/true).size();
    for (const std::string& text : chain.turns) {
      QKV_ASSIGN_OR_RETURN(const std::string turn, NextUserTurn(model, text, /*open_turn=*/"7"));
      tokens += model.Tokenize(turn, /*add_special=*/false).size() + kSeamTokens;
    }
    longest = std::max(longest, tokens);
  }
  return longest + request.hops * request.generate.predict;
}

Status SetContext(const Model& model, HopRequest* request) {
  QKV_ASSIGN_OR_RETURN(const size_t longest, LongestChain(model, *request));
  const size_t context = (longest + kContextStep - 1) / kContextStep * kContextStep;
  if (longest > model.training_context()) {
    return {
        StatusCode::kOutOfRange,
        fmt::format("a chain may take {} tokens, but the model was trained for {}: use fewer --shots or --hops, or a "
                    "smaller --predict",
                    longest, model.training_context())};
  }
  request->context = static_cast<uint32_t>(context);
  return {};
}

}  // namespace

Result<ChainSet> MakeChainSet(const Model& model, const std::vector<GsmProblem>& problems,
                              const std::vector<GsmProblem>& examples, const ChainProtocol& protocol) {
  if (protocol.hops < 1 || protocol.hops > kMaxChainHops)
    return Invalid(fmt::format("{} hops: give 1 to {}", protocol.hops, kMaxChainHops));
  const size_t count = protocol.count == 0 ? problems.size() : protocol.count;
  if (count > problems.size())
    return Invalid(
        fmt::format("there are only {}: give a --count of at most that", Counted(problems.size(), "problem")));
  std::vector<size_t> chosen = ShuffledIndices(problems.size(), protocol.seed, kProblemStream);
  chosen.resize(count);
  std::set<std::string> asked;
  for (const size_t index : chosen) asked.insert(problems[index].question);
  QKV_ASSIGN_OR_RETURN(const std::vector<ChainExample> shown, ChooseExamples(examples, asked, protocol));

  ChainSet set;
  HopRequest& request = set.request;
  for (const size_t index : chosen) {
    HopChain& chain = request.chains.emplace_back();
    chain.id = fmt::format("gsm8k-{}", index + 1);
    chain.messages = MessagesOf(shown, problems[index].question);
    for (size_t hop = 1; hop < protocol.hops; ++hop) chain.turns.push_back(TurnOf(hop - 1, problems[index].question));
    set.expected[chain.id] = NumberOf(problems[index].number).value_or(0);
  }
  request.hops = protocol.hops;
  request.parallel = protocol.parallel;
  request.generate.predict = protocol.predict;
  request.generate.sampling.temp = 0;
  request.generate.stop_line = kAnswerMarker;
  request.session = protocol.session;
  QKV_RETURN_IF_ERROR(SetContext(model, &request));
  return set;
}

}  // namespace qkvshare
