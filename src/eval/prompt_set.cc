#include "eval/prompt_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "eval/facts_document.h"
#include "eval/gsm8k_problems.h"
#include "eval/receivers.h"
#include "eval/seeded_random.h"
#include "runtime/prompt.h"

namespace qkvshare {
namespace {

constexpr size_t kQuestionsOfDocument = 10;
constexpr uint32_t kLeastContext = 64;
constexpr const char* kGsm8kName = "gsm8k";
// Streams of random numbers, apart from those of documents, which are numbered from 0.
constexpr uint64_t kReceiverStream = uint64_t{1} << 40, kProblemStream = uint64_t{2} << 40;

std::vector<int32_t> Tokens(const Model& model, const std::string& text) {
  return model.Tokenize(text, /*add_special=*/false);
}

void Extend(const std::vector<int32_t>& more, std::vector<int32_t>* tokens) {
  tokens->insert(tokens->end(), more.begin(), more.end());
}

// A receiver's turn as it follows the context, cut after the instruction.
struct TurnText {
  std::string instruction, rest;
};

Result<TurnText> TurnOf(const Model& model, const Receiver& receiver, bool chat) {
  const std::string instruction = receiver.instruction;
  const std::string said = instruction.empty() ? receiver.turn : instruction + "\n\n" + receiver.turn;
  std::string text = said + "\nAnswer:";
  if (chat) {
    QKV_ASSIGN_OR_RETURN(text, NextUserTurn(model, said, ""));
  }
  const size_t at = text.find(said);
  if (at == std::string::npos) {
    return Status(StatusCode::kUnsupported, "the model's chat template changes messages; give --plain");
  }
  const size_t cut = instruction.empty() ? 0 : at + instruction.size();
  return TurnText{text.substr(0, cut), text.substr(cut)};
}

Result<Continuation> ContinuationOf(const Model& model, const Receiver& receiver, bool chat) {
  Continuation continuation;
  continuation.kind = receiver.kind;
  QKV_ASSIGN_OR_RETURN(const TurnText text, TurnOf(model, receiver, chat));
  if (!text.instruction.empty()) continuation.instruction = Tokens(model, text.instruction);
  continuation.turn = Tokens(model, text.rest);
  if (!receiver.answer.empty()) continuation.answer = Tokens(model, (chat ? "" : " ") + receiver.answer);
  if (!receiver.role.empty()) continuation.roles = {receiver.role};
  return continuation;
}

Result<std::vector<EvalPrompt>> FactsPrompts(const Model& model, const PromptSetRequest& request) {
  ContextFrame frame;
  if (request.chat) {
    QKV_ASSIGN_OR_RETURN(frame, ChatFrame(model));
  }
  std::vector<EvalPrompt> prompts;
  for (size_t i = 0; i < request.prompts; ++i) {
    QKV_ASSIGN_OR_RETURN(FactsDocument document,
                         MakeFactsDocument(model, frame, request.context_tokens, request.seed, i));
    SeededRandom random(request.seed, kReceiverStream + i);
    const std::vector<Receiver> receivers = request.set == PromptSet::kFacts
                                                ? MakeQuestions(document.sections, kQuestionsOfDocument, &random)
                                                : MakeReceivers(document.sections, &random);
    EvalPrompt& prompt = prompts.emplace_back();
    prompt.id = fmt::format("facts-{}", i);
    prompt.context = std::move(document.tokens);
    prompt.segments = std::move(document.segments);
    for (const Receiver& receiver : receivers) {
      QKV_ASSIGN_OR_RETURN(Continuation continuation, ContinuationOf(model, receiver, request.chat));
      continuation.id = fmt::format("{}-{}", receiver.kind, prompt.continuations.size());
      prompt.continuations.push_back(std::move(continuation));
    }
  }
  return prompts;
}

// Whole problems, in this order, as long as they fit.
std::vector<int32_t> SolvedProblems(const Model& model, std::span<const GsmProblem> problems,
                                    const std::vector<size_t>& order, size_t most) {
  std::vector<int32_t> context;
  for (const size_t index : order) {
    const GsmProblem& problem = problems[index];
    const std::string text = fmt::format("Question: {}\nAnswer: {}\n\n", problem.question, problem.answer);
    const std::vector<int32_t> tokens = model.Tokenize(text, /*add_special=*/context.empty());
    if (context.size() + tokens.size() > most) {
      if (context.empty()) continue;  // a long one; others may fit
      break;
    }
    Extend(tokens, &context);
  }
  return context;
}

Result<std::vector<EvalPrompt>> GsmPrompts(const Model& model, const PromptSetRequest& request) {
  QKV_ASSIGN_OR_RETURN(const std::vector<GsmProblem> problems, ReadGsmProblems(request.file));
  if (problems.size() < std::max<size_t>(request.prompts, 2)) {  // one to ask, one for its context
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: {} problems are not enough for {} prompts; ask for fewer", request.file,
                              problems.size(), request.prompts));
  }
  std::vector<size_t> order(problems.size());
  std::iota(order.begin(), order.end(), size_t{0});
  SeededRandom random(request.seed, kProblemStream);
  random.Shuffle(&order);
  std::vector<EvalPrompt> prompts;
  for (size_t i = 0; i < request.prompts; ++i) {
    // From all but its own problem, so that it does not depend on how many prompts there are.
    std::vector<size_t> others = order;
    SeededRandom own(request.seed, kProblemStream + 1 + i);
    own.Shuffle(&others);
    std::erase(others, order[i]);
    EvalPrompt& prompt = prompts.emplace_back();
    prompt.id = fmt::format("gsm8k-{}", order[i]);
    prompt.context = SolvedProblems(model, problems, others, request.context_tokens);
    if (prompt.context.empty()) {
      return Status(StatusCode::kInvalidArgument, fmt::format("no problem of {} fits into a context of {} tokens; "
                                                              "ask for more",
                                                              request.file, request.context_tokens));
    }
    prompt.segments.push_back({"prompt", "", "", 0, static_cast<uint32_t>(prompt.context.size())});
    Continuation& continuation = prompt.continuations.emplace_back();
    continuation.id = "continue-0";
    continuation.kind = "continue";
    continuation.turn = Tokens(model, fmt::format("Question: {}\nAnswer:", problems[order[i]].question));
    continuation.answer = Tokens(model, " " + problems[order[i]].answer);
  }
  return prompts;
}

}  // namespace

Status ParsePromptSet(const std::string& text, PromptSetRequest* request) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  request->file.clear();
  if (name == kGsm8kName && colon != std::string::npos && colon + 1 < text.size()) {
    request->set = PromptSet::kGsm8k;
    request->file = text.substr(colon + 1);
    return {};
  }
  if (text == "facts") {
    request->set = PromptSet::kFacts;
  } else if (text == "receivers") {
    request->set = PromptSet::kReceivers;
  } else {
    return {StatusCode::kInvalidArgument,
            fmt::format("there is no set of prompts '{}'; there are gsm8k:FILE (test.jsonl or train.jsonl of "
                        "GSM8K), facts and receivers",
                        text)};
  }
  return {};
}

bool HasChat(const Model& model) {
  return ChatFrame(model).has_value() && NextUserTurn(model, "a turn", "").has_value();
}

Result<std::vector<EvalPrompt>> MakePromptSet(const Model& model, const PromptSetRequest& request) {
  if (request.prompts == 0) return Status(StatusCode::kInvalidArgument, "a set has at least one prompt");
  if (request.context_tokens < kLeastContext) {
    return Status(StatusCode::kInvalidArgument, fmt::format("a context has at least {} tokens", kLeastContext));
  }
  return request.set == PromptSet::kGsm8k ? GsmPrompts(model, request) : FactsPrompts(model, request);
}

}  // namespace qkvshare
