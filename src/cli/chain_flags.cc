#include "cli/chain_flags.h"

#include <CLI/CLI.hpp>

#include "runtime/session.h"

namespace qkvshare::cli {

void ChainFlags::AddTo(CLI::App* app) {
  model.AddModelTo(app);
  app->add_option("--problems", problems, "Problems of GSM8K to solve (test.jsonl)")->required()->check(NotEmpty());
  app->add_option("--examples", examples, "Problems to take worked examples from (train.jsonl)")
      ->required()
      ->check(NotEmpty());
  app->add_option("--count", protocol.count, "Problems, chosen by the seed, and so chains (default: all)")
      ->check(Count(1));
  app->add_option("--seed", protocol.seed, "Which problems, in which order, and which examples")
      ->check(Count(0))
      ->capture_default_str();
  app->add_option("--shots", protocol.shots, "Worked examples in the first prompt")
      ->check(Count(0, kMaxShots))
      ->capture_default_str();
  app->add_option("--hops", protocol.hops, "Agents, one after the other, each with a problem of its own")
      ->check(Count(1, kMaxChainHops))
      ->capture_default_str();
  app->add_option("-n,--predict", protocol.predict, "Tokens of an answer at most")
      ->check(Count(1))
      ->capture_default_str();
  app->add_option("--parallel", protocol.parallel, "Chains side by side, as llama.cpp's -np")
      ->check(Count(1, kMaxSequences))
      ->capture_default_str();
}

Result<ChainFlags::Chains> ChainFlags::Load() const {
  QKV_ASSIGN_OR_RETURN(const std::vector<GsmProblem> asked, ReadGsmProblems(problems));
  QKV_ASSIGN_OR_RETURN(const std::vector<GsmProblem> shown, ReadGsmProblems(examples));
  Chains chains;
  QKV_ASSIGN_OR_RETURN(chains.model, model.Load());
  ChainProtocol wanted = protocol;
  wanted.session = model.session;
  QKV_ASSIGN_OR_RETURN(chains.set, MakeChainSet(*chains.model, asked, shown, wanted));
  return chains;
}

}  // namespace qkvshare::cli
