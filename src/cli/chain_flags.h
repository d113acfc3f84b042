// Flags of commands that take chains of word problems, and what they stand for.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/options.h"
#include "eval/chain_protocol.h"
#include "eval/gsm8k_problems.h"
#include "qkvshare/status.h"
#include "runtime/model.h"

namespace qkvshare::cli {

struct ChainFlags {
  ModelFlags model;
  std::string problems, examples;
  ChainProtocol protocol;

  // The model's, --problems, --examples, --count, --seed, --shots, --hops, -n, --parallel.
  void AddTo(CLI::App* app);

  struct Chains {
    std::unique_ptr<Model> model;
    ChainSet set;
  };
  // Errors as ReadGsmProblems (before the model is loaded), ModelFlags::Load and MakeChainSet.
  Result<Chains> Load() const;
};

}  // namespace qkvshare::cli
