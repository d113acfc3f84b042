#include "eval/chain_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>

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
// Of hop 1, 2, ...; then again from the first. "The same form" is what the examples show after the same words.
constexpr std::array<const char*, 4> kTurns = {
    "You are the checker. Check the solution above, correct it where it is wrong, and write it again in the same form.",
    "You are another solver. Solve the same problem again on your own, in the same form.",
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

// The first `shots` of the shuffled ones that are short and none of the problems.
Result<std::vector<GsmProblem>> ChooseExamples(const std::vector<GsmProblem>& examples,
                                               const std::set<std::string>& asked, const ChainProtocol& protocol) {
  std::vector<GsmProblem> chosen;
  for (const size_t index : ShuffledIndices(examples.size(), protocol.seed, kExampleStream)) {
    if (chosen.size() == protocol.shots) break;
    const GsmProblem& example = examples[index];
    if (example.question.size() + example.answer.size() > kExampleBytes || asked.contains(example.question)) continue;
    chosen.push_back(example);
  }
  if (chosen.size() == protocol.shots) return chosen;
  return Invalid(
      fmt::format("there are only {} examples of at most {} bytes that are none of the problems, but {} are "
                  "wanted: give more, or fewer --shots",
                  chosen.size(), kExampleBytes, protocol.shots));
}

std::vector<ChatMessage> MessagesOf(const std::vector<GsmProblem>& examples, const std::string& question) {
  std::vector<ChatMessage> messages = {{"system", kSystem}};
  for (size_t i = 0; i < examples.size(); ++i) {
    // Without a turn that shows it, later agents fall into a form of their own.
    for (const std::string& asked : {examples[i].question, std::string(kTurns[i % kTurns.size()])}) {
      messages.push_back({"user", asked});
      messages.push_back({"assistant", examples[i].answer});
    }
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
    longest = std::max(longest, model.Tokenize(prompt, /*add_special=*/true).size());
  }
  for (const std::string& text : request.chains.front().turns) {
    QKV_ASSIGN_OR_RETURN(const std::string turn, NextUserTurn(model, text, /*open_turn=*/"7"));
    longest += model.Tokenize(turn, /*add_special=*/false).size() + kSeamTokens;
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
    return Invalid(fmt::format("there are only {} problems: give a --count of at most that", problems.size()));
  std::vector<size_t> chosen = ShuffledIndices(problems.size(), protocol.seed, kProblemStream);
  chosen.resize(count);
  std::set<std::string> asked;
  for (const size_t index : chosen) asked.insert(problems[index].question);
  QKV_ASSIGN_OR_RETURN(const std::vector<GsmProblem> shown, ChooseExamples(examples, asked, protocol));

  ChainSet set;
  HopRequest& request = set.request;
  for (const size_t index : chosen) {
    HopChain& chain = request.chains.emplace_back();
    chain.id = fmt::format("gsm8k-{}", index + 1);
    chain.messages = MessagesOf(shown, problems[index].question);
    for (size_t hop = 1; hop < protocol.hops; ++hop) chain.turns.emplace_back(kTurns[(hop - 1) % kTurns.size()]);
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
