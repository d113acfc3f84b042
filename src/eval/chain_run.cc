#include "eval/chain_run.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/hash.h"
#include "eval/cache_round_trip.h"
#include "eval/chain_results.h"
#include "eval/final_answer.h"
#include "eval/hop_header.h"
#include "eval/hop_runner.h"
#include "runtime/generate.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

// Of a token in the context's own cache.
void AddCacheSize(const Session& session, Json* header) {
  const CacheSize size =
      SizeInCache(session.state_layout().shapes, session.cache_type_k(), session.cache_type_v(), /*tokens=*/1);
  (*header)["cache_token_bytes"] = size.bytes;
  (*header)["cache_code_bits"] = size.code_bits;
  (*header)["cache_total_bits"] = size.total_bits;
}

// The input's digest is of what is asked; this one is of what is right.
std::string DigestOfExpected(const ChainSet& set) {
  Blake2bHasher hasher;
  for (const auto& [chain, tasks] : set.tasks) {
    hasher.UpdateString(chain);
    for (const ChainTask& task : tasks) hasher.UpdateValue(task.expected);
  }
  return ToHex(hasher.Finish());
}

}  // namespace

ChainScore ScoreOf(const HopRecord& record, double expected) {
  ChainScore score;
  score.answer = FinalAnswer(record.text);
  score.right = score.answer && SameNumber(*score.answer, expected);
  score.truncated =
      record.stop == StopReasonName(StopReason::kLength) || record.stop == StopReasonName(StopReason::kContext);
  return score;
}

Status CheckChainArm(const Model& model, const ChainSet& set, const ChainArm& arm) {
  HopRequest request = set.request;
  ApplyChainArm(arm, &request);
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, MakeHopSession(model, request));
  QKV_RETURN_IF_ERROR(FitChainArm(*session, arm, &request));
  return CheckHopRequest(*session, request);
}

Status RunChainArm(const Model& model, const ChainSet& set, const ChainArm& arm, const std::string& path,
                   const ChainRunHooks& hooks) {
  HopRequest request = set.request;
  ApplyChainArm(arm, &request);
  request.session.cancel = hooks.cancel;
  request.results = path;
  QKV_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, MakeHopSession(model, request));
  QKV_RETURN_IF_ERROR(FitChainArm(*session, arm, &request));
  request.add_to_header = [&](Json* header) {
    (*header)["task"] = kChainTask;
    (*header)["arm"] = arm.name;
    (*header)["expected"] = DigestOfExpected(set);
    AddCacheSize(*session, header);
  };
  request.add_to_line = [&](const HopRecord& record, Json* line) {
    const ChainTask& task = set.tasks.at(record.chain).at(record.hop);
    const ChainScore score = ScoreOf(record, task.expected);
    (*line)["problem"] = task.problem;
    (*line)["answer"] = score.answer ? Json(*score.answer) : Json();
    (*line)["expected"] = task.expected;
    (*line)["right"] = score.right;
    (*line)["marked"] = score.answer.has_value();
    (*line)["truncated"] = score.truncated;
  };
  QKV_ASSIGN_OR_RETURN(Json header, HopHeader(*session, request));
  request.add_to_header(&header);
  for (const std::string& file : hooks.beside) QKV_RETURN_IF_ERROR(CheckChainHeader(header, file));
  if (hooks.on_hop) {
    request.on_hop = [&](size_t chains, size_t hop) {
      hooks.on_hop(chains * request.hops + hop * request.GroupSize(chains), hop);
    };
  }
  return RunHops(session.get(), request).status();
}

}  // namespace qkvshare
