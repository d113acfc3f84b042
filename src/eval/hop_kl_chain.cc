#include "eval/hop_kl_chain.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "card/card.h"
#include "eval/cache_round_trip.h"
#include "eval/fidelity.h"
#include "eval/fidelity_values.h"
#include "eval/hop_record.h"
#include "eval/hop_steps.h"
#include "eval/rounded.h"
#include "runtime/sender.h"

namespace qkvshare {
namespace {

class HopKlChain {
 public:
  HopKlChain(const HopKlSetup& setup, size_t index, std::span<const HopRecord> said)
      : setup_(setup),
        said_(said),
        reference_steps_(setup.reference, setup.request),
        reference_(StateOf(setup.request, index)) {
    for (const HopKlSetup::Arm& arm : setup.arms) {
      steps_.emplace_back(arm.session, arm.request);
      states_.push_back(StateOf(arm.request, index));
    }
  }

  Result<std::vector<HopKlResult>> Run() {
    setup_.reference->Clear();
    for (const HopKlSetup::Arm& arm : setup_.arms) arm.session->Clear();
    for (size_t hop = 0; hop < said_.size() && said_[hop].read_tokens > 0; ++hop) QKV_RETURN_IF_ERROR(RunHop(hop));
    return std::move(results_);
  }

 private:
  static ChainState StateOf(const HopRequest& request, size_t index) {
    ChainState state;
    state.chain = &request.chains[index];
    state.index = index;
    return state;
  }

  Status RunHop(size_t hop);
  Status BeginReference(size_t hop);
  Result<LogitRows> Answer(size_t hop, Session* session, HopSteps* steps, ChainState* state) const;
  Status Measure(size_t hop, const ReferenceRows& reference, size_t arm);
  Status HandOn(size_t hop, size_t arm);
  Status PackOnce(size_t hop, size_t arm);
  void CountBytes(size_t arm, HopKlResult* result) const;
  void Step(const std::string& what, size_t hop) const {
    if (!setup_.on_decoded) return;
    setup_.on_decoded(fmt::format("{}, {}", HopName(hop), what),
                      said_[hop].read_tokens + AnswerTokens(said_[hop]).size());
  }

  const HopKlSetup& setup_;
  std::span<const HopRecord> said_;
  HopSteps reference_steps_;
  ChainState reference_;
  std::vector<HopSteps> steps_;     // [arms]
  std::vector<ChainState> states_;  // [arms]
  std::vector<HopKlResult> results_;
};

Status HopKlChain::RunHop(size_t hop) {
  Step("F16", hop);
  QKV_RETURN_IF_ERROR(BeginReference(hop));
  QKV_ASSIGN_OR_RETURN(LogitRows rows, Answer(hop, setup_.reference, &reference_steps_, &reference_));
  const ReferenceRows reference(std::move(rows), 0, setup_.reference->threads());
  for (size_t arm = 0; arm < setup_.arms.size(); ++arm) {
    Step(setup_.arms[arm].name, hop);
    QKV_RETURN_IF_ERROR(Measure(hop, reference, arm));
    if (hop + 1 < said_.size()) QKV_RETURN_IF_ERROR(HandOn(hop, arm));
  }
  return {};
}

Status HopKlChain::BeginReference(size_t hop) {
  QKV_RETURN_IF_ERROR(reference_steps_.Begin(hop, &reference_));
  const HopRecord &now = reference_.record, &then = said_[hop];
  if (now.chain == then.chain && then.hop == hop && now.taken_tokens == then.taken_tokens &&
      now.read_tokens == then.read_tokens)
    return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("hop {} of the conversation {} has other tokens than this chain's: it is of another run", hop + 1,
                      then.chain)};
}

// What was said, after the prompt: rows that predict its tokens, and one more.
Result<LogitRows> HopKlChain::Answer(size_t hop, Session* session, HopSteps* steps, ChainState* state) const {
  std::vector<int32_t> tokens = AnswerTokens(said_[hop]);
  tokens.insert(tokens.begin(), state->last().front());
  QKV_ASSIGN_OR_RETURN(LogitRows rows, ScoreTokens(session, tokens, 0));
  state->record.tokens = said_[hop].tokens;
  state->record.end_token = said_[hop].end_token;
  steps->EndAnswer(state);
  return rows;
}

Status HopKlChain::Measure(size_t hop, const ReferenceRows& reference, size_t arm) {
  const HopKlSetup::Arm& setup = setup_.arms[arm];
  ChainState& state = states_[arm];
  if (Packs(setup.request.hand_over)) {
    setup.session->Clear();  // of another arm's hop
    QKV_RETURN_IF_ERROR(setup.session->KeepQueries(KeepsQueries(setup.request) ? kWindowTokens : 0, kWindowStride));
  }
  HopKlResult result;
  CountBytes(arm, &result);
  QKV_RETURN_IF_ERROR(steps_[arm].Begin(hop, &state));
  QKV_ASSIGN_OR_RETURN(const LogitRows rows, Answer(hop, setup.session, &steps_[arm], &state));
  const std::vector<int32_t> answer = AnswerTokens(said_[hop]);
  if (answer.empty()) return {};
  result.tokens = state.record.taken_tokens;
  result.line.prompt = state.chain->id;
  result.line.continuation = result.line.kind = HopName(hop);
  result.line.arm = setup.name;
  QKV_RETURN_IF_ERROR(
      SetPredictions(reference.Compare(rows, answer, setup.session->threads()), answer.size(), &result.line));
  results_.push_back(std::move(result));
  return {};
}

Status HopKlChain::HandOn(size_t hop, size_t arm) {
  const HopKlSetup::Arm& setup = setup_.arms[arm];
  if (!Packs(setup.request.hand_over)) return {};
  if (setup.way == HopKlWay::kOnce) return PackOnce(hop, arm);
  ChainState* const state = &states_[arm];
  if (setup.request.probe) QKV_RETURN_IF_ERROR(steps_[arm].Probe(hop, {&state, 1}));
  return steps_[arm].End(hop, state);
}

// All that the F16 sequence holds by now.
Status HopKlChain::PackOnce(size_t hop, size_t arm) {
  ChainState& state = states_[arm];
  PackTimes times;
  const PackOptions options = HopPackOptions(setup_.arms[arm].request, hop, state.chain->id);
  QKV_ASSIGN_OR_RETURN(const PackedCard packed, PackSession(*setup_.reference, options, &times));
  QKV_ASSIGN_OR_RETURN(Card card, Card::FromBytes(packed.Bytes()));
  state.cards.clear();
  return AppendCard(std::make_shared<const Card>(std::move(card)), &state.cards);
}

// Of what the hop gets, before it begins.
void HopKlChain::CountBytes(size_t arm, HopKlResult* result) const {
  const HopKlSetup::Arm& setup = setup_.arms[arm];
  FidelityLine& line = result->line;
  if (!Packs(setup.request.hand_over)) {
    const size_t tokens = setup.session->tokens().size();
    if (tokens == 0) return;
    const CacheSize size = SizeInCache(setup.session->state_layout().shapes, setup.session->cache_type_k(),
                                       setup.session->cache_type_v(), tokens);
    line.bytes = size.bytes;
    line.code_bits = Rounded(size.code_bits);
    line.total_bits = Rounded(size.total_bits);
    return;
  }
  double tokens = 0, code_bits = 0, total_bits = 0;
  for (const CardPart& part : states_[arm].cards) {
    const auto n = static_cast<double>(part.card->tokens());
    tokens += n;
    code_bits += n * part.card->average_code_bits();
    total_bits += n * part.card->average_total_bits();
    line.bytes += part.card->file_bytes();
  }
  if (tokens == 0) return;
  line.code_bits = Rounded(code_bits / tokens);
  line.total_bits = Rounded(total_bits / tokens);
}

}  // namespace

std::vector<int32_t> AnswerTokens(const HopRecord& record) {
  std::vector<int32_t> tokens = record.tokens;
  if (record.end_token >= 0) tokens.push_back(record.end_token);
  return tokens;
}

Result<std::vector<HopKlResult>> MeasureHopKl(const HopKlSetup& setup, size_t index, std::span<const HopRecord> said) {
  return HopKlChain(setup, index, said).Run();
}

}  // namespace qkvshare
