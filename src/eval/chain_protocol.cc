#include "eval/chain_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/text.h"
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

Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }

std::vector<size_t> ShuffledIndices(size_t count, uint64_t seed, uint64_t stream) {
  std::vector<size_t> indices(count);
  std::iota(indices.begin(), indices.end(), size_t{0});
  SeededRandom(seed, stream).Shuffle(&indices);
  return indices;
}

// The first `shots` of the shuffled ones that are short and none of the problems.
Result<std::vector<GsmProblem>> ChooseExamples(const std::vector<GsmProblem>& examples,
                                               const std::set<std::string>& asked, const ChainProtocol& protocol) {
  std::vector<GsmProblem> chosen;
  for (const size_t index : ShuffledIndices(examples.size(), protocol.seed, kExampleStream)) {
    if (chosen.size() == protocol.shots) break;
    const GsmProblem& example = examples[index];
    if (example.question.size() + example.answer.size() <= kExampleBytes && !asked.contains(example.question))
      chosen.push_back(example);
  }
  if (chosen.size() == protocol.shots) return chosen;
  return Invalid(
      fmt::format("there are only {} examples of at most {} bytes that are none of the problems, but {} are wanted: "
                  "give more, or fewer --shots",
                  chosen.size(), kExampleBytes, protocol.shots));
}

// A problem on a sheet, and what it is called there.
struct SheetItem {
  std::string name;
  const GsmProblem* problem;

  std::string Text() const { return fmt::format("Problem {}: {}", name, problem->question); }
};

std::string AskFirst(const std::vector<SheetItem>& sheet) {
  std::string text = "Here is a sheet of problems, one for each agent.\n\n";
  for (const SheetItem& item : sheet) text += item.Text() + "\n\n";
  return text + fmt::format("You are the first agent. Solve problem {}.", sheet.front().name);
}
std::string AskNext(const SheetItem& item) {
  return fmt::format("You are the next agent. Solve problem {}.", item.name);
}

// System message and a solved sheet, which shows the form to the agents of every hop: the start of all chains.
std::vector<ChatMessage> ExampleMessages(const std::vector<GsmProblem>& examples) {
  std::vector<ChatMessage> messages = {{"system", kSystem}};
  std::vector<SheetItem> sheet;
  for (const GsmProblem& example : examples)
    sheet.push_back({std::string(1, static_cast<char>('A' + sheet.size())), &example});
  for (const SheetItem& item : sheet) {
    messages.push_back({"user", &item == &sheet.front() ? AskFirst(sheet) : AskNext(item)});
    messages.push_back({"assistant", item.problem->answer});
  }
  return messages;
}

HopChain ChainOf(std::string id, const std::vector<ChatMessage>& before, const std::vector<SheetItem>& sheet) {
  HopChain chain;
  chain.id = std::move(id);
  chain.messages = before;
  chain.messages.push_back({"user", AskFirst(sheet)});
  for (size_t hop = 0; hop < sheet.size(); ++hop) {
    chain.parts.push_back({sheet[hop].Text(), {hop}});
    if (hop > 0) chain.turns.push_back(AskNext(sheet[hop]));
  }
  return chain;
}

// Which problem each hop of a chain gets: the chains of a block of `hops` have the same problems, each turned one
// further, so that each problem is solved once at each hop, also in the first so many blocks of a run.
std::vector<size_t> SheetOf(size_t chain, const std::vector<size_t>& chosen, size_t hops) {
  const size_t block = chain / hops * hops;
  std::vector<size_t> sheet;
  for (size_t hop = 0; hop < hops; ++hop) sheet.push_back(chosen[block + (chain + hop) % hops]);
  return sheet;
}

// Into the set: a chain for each of the chosen problems.
void AddChains(const std::vector<GsmProblem>& problems, const std::vector<size_t>& chosen,
               const std::vector<ChatMessage>& before, size_t hops, ChainSet* set) {
  for (size_t i = 0; i < chosen.size(); ++i) {
    std::vector<SheetItem> sheet;
    std::vector<ChainTask> tasks;
    for (const size_t index : SheetOf(i, chosen, hops)) {
      sheet.push_back({std::to_string(sheet.size() + 1), &problems[index]});
      tasks.push_back({fmt::format("gsm8k-{}", index + 1), NumberOf(problems[index].number).value_or(0)});
    }
    set->request.chains.push_back(ChainOf(fmt::format("sheet-{}", i + 1), before, sheet));
    set->tasks[set->request.chains.back().id] = std::move(tasks);
  }
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
  if (protocol.shots > kMaxShots)
    return Invalid(fmt::format("{} examples: give at most {}", protocol.shots, kMaxShots));
  const size_t count = protocol.count == 0 ? problems.size() : protocol.count;
  if (count > problems.size()) {
    return Invalid(
        fmt::format("there are only {}: give a --count of at most that", Counted(problems.size(), "problem")));
  }
  if (count < protocol.hops || (protocol.count % protocol.hops != 0)) {
    return Invalid(
        fmt::format("{} for {} hops, each of which solves another one of a sheet: give a --count that is a "
                    "multiple of --hops",
                    Counted(count, "problem"), protocol.hops));
  }
  std::vector<size_t> chosen = ShuffledIndices(problems.size(), protocol.seed, kProblemStream);
  chosen.resize(count / protocol.hops * protocol.hops);
  std::set<std::string> asked;
  for (const size_t index : chosen) asked.insert(problems[index].question);
  QKV_ASSIGN_OR_RETURN(const std::vector<GsmProblem> shown, ChooseExamples(examples, asked, protocol));

  ChainSet set;
  HopRequest& request = set.request;
  AddChains(problems, chosen, ExampleMessages(shown), protocol.hops, &set);
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
