#include "eval/hop_group.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/stopwatch.h"
#include "eval/hop_steps.h"
#include "runtime/generate.h"

namespace qkvshare {
namespace {

constexpr uint32_t kRandomSeed = 0xFFFFFFFFu;

class HopGroup {
 public:
  HopGroup(Session* session, const HopRequest& request)
      : session_(*session), steps_(session, request), request_(request) {}

  Result<std::vector<HopRecord>> Run(size_t first);

 private:
  Status RunHop(size_t hop, std::vector<ChainState>* chains);
  Status Answer(size_t hop, std::span<ChainState* const> going);
  GenerateOptions OptionsOf(size_t hop, const ChainState& chain) const;

  Session& session_;
  HopSteps steps_;
  const HopRequest& request_;
};

Result<std::vector<HopRecord>> HopGroup::Run(size_t first) {
  std::vector<ChainState> chains(request_.GroupSize(first));
  for (int sequence = 0; sequence < session_.sequences(); ++sequence) {
    if (!session_.tokens(sequence).empty()) session_.Clear(sequence);
  }
  for (size_t i = 0; i < chains.size(); ++i) {
    chains[i].index = first + i;
    chains[i].chain = &request_.chains[first + i];
    chains[i].sequence = static_cast<int>(i);
  }
  std::vector<std::vector<HopRecord>> by_chain(chains.size());
  for (size_t hop = 0; hop < request_.hops; ++hop) {
    if (request_.on_hop) request_.on_hop(first, hop);
    QKV_RETURN_IF_ERROR(RunHop(hop, &chains));
    for (size_t i = 0; i < chains.size(); ++i) by_chain[i].push_back(std::move(chains[i].record));
  }
  std::vector<HopRecord> records;
  for (const std::vector<HopRecord>& of_chain : by_chain)
    records.insert(records.end(), of_chain.begin(), of_chain.end());
  return records;
}

Status HopGroup::RunHop(size_t hop, std::vector<ChainState>* chains) {
  std::vector<ChainState*> going;
  for (ChainState& chain : *chains) {
    QKV_RETURN_IF_ERROR(steps_.Begin(hop, &chain));
    if (chain.full) {
      chain.record.stop = StopReasonName(StopReason::kContext);
    } else {
      going.push_back(&chain);
    }
  }
  if (going.empty()) return {};
  QKV_RETURN_IF_ERROR(Answer(hop, going));
  if (!Packs(request_.hand_over) || hop + 1 == request_.hops) return {};  // after the last one nobody takes a card
  if (request_.probe) QKV_RETURN_IF_ERROR(steps_.Probe(hop, going));
  for (ChainState* chain : going) QKV_RETURN_IF_ERROR(steps_.End(hop, chain));
  return {};
}

// The rest of all prompts, then all answers, in lock step.
Status HopGroup::Answer(size_t hop, std::span<ChainState* const> going) {
  Stopwatch watch;
  std::vector<SequenceTokens> last;
  std::vector<SequenceOptions> wanted;
  for (const ChainState* chain : going) last.push_back({chain->sequence, chain->last()});
  QKV_RETURN_IF_ERROR(session_.DecodeTogether(last));
  const int64_t last_us = watch.LapUs();
  for (const ChainState* chain : going) wanted.push_back({chain->sequence, OptionsOf(hop, *chain)});
  QKV_ASSIGN_OR_RETURN(const std::vector<Generation> answers, GenerateMany(&session_, wanted));
  const int64_t generate_us = watch.LapUs();
  std::vector<SequenceTokens> rest;
  for (size_t i = 0; i < going.size(); ++i) {
    if (answers[i].stop == StopReason::kCancelled) return {StatusCode::kCancelled, "cancelled"};
    if (!answers[i].rest().empty()) rest.push_back({going[i]->sequence, answers[i].rest()});
  }
  if (!rest.empty()) QKV_RETURN_IF_ERROR(session_.DecodeTogether(rest));
  const int64_t rest_us = watch.LapUs();
  for (size_t i = 0; i < going.size(); ++i) {
    const Generation& answer = answers[i];
    HopRecord& record = going[i]->record;
    const bool cut = answer.stop == StopReason::kLength && answer.tokens.size() < request_.generate.predict;
    record.stop = StopReasonName(cut ? StopReason::kContext : answer.stop);
    record.tokens = answer.tokens;
    record.end_token = answer.end_token;
    record.text = answer.text;
    for (const auto& [name, us] : {std::pair{"last_token", last_us}, std::pair{"first_token", answer.first_token_us},
                                   std::pair{"generate", generate_us}, std::pair{"rest", rest_us}}) {
      record.stages.emplace_back(name, us);
    }
    steps_.EndAnswer(going[i]);
  }
  return {};
}

// An answer ends where the chain's context does: all that is sampled can be decoded.
GenerateOptions HopGroup::OptionsOf(size_t hop, const ChainState& chain) const {
  GenerateOptions options = request_.generate;
  options.on_text = nullptr;
  options.predict = std::min<size_t>(options.predict, request_.context - session_.tokens(chain.sequence).size());
  options.sampling.seed += static_cast<uint32_t>(chain.index * request_.hops + hop);
  if (options.sampling.seed == kRandomSeed) options.sampling.seed = 0;
  return options;
}

}  // namespace

Result<std::vector<HopRecord>> RunHopGroup(size_t first, const HopRequest& request, Session* session) {
  return HopGroup(session, request).Run(first);
}

}  // namespace qkvshare
