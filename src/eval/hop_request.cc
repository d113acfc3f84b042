#include "eval/hop_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "card/card.h"

namespace qkvshare {
namespace {

constexpr uint32_t kRandomSeed = 0xFFFFFFFFu;

Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }

Status CheckChain(const HopChain& chain, const HopRequest& request) {
  const auto fits_a_file = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  if (chain.id.empty() || chain.id.size() > 200 || !std::all_of(chain.id.begin(), chain.id.end(), fits_a_file)) {
    return Invalid(fmt::format("chain id '{}': give 1 to 200 letters, digits, '-', '_' and '.'", chain.id));
  }
  if (chain.messages.empty() == chain.tokens.empty())
    return Invalid(fmt::format("chain {}: give messages or tokens for its first prompt", chain.id));
  if (chain.messages.empty() && request.hand_over == HandOver::kText)
    return Invalid(fmt::format("chain {}: to be handed on as text it needs messages", chain.id));
  if (chain.turns.size() + 1 >= request.hops) return {};
  return Invalid(fmt::format("chain {} has {} turns after its first prompt, but {} hops need {}", chain.id,
                             chain.turns.size(), request.hops, request.hops - 1));
}

Status CheckPacks(const HopRequest& request) {
  if (request.packs.size() != 1 && request.packs.size() + 1 != request.hops) {
    return Invalid(fmt::format("{} pack options: give one, or one for each of {} hops but the last",
                               request.packs.size(), request.hops));
  }
  for (const PackOptions& pack : request.packs) {
    QKV_RETURN_IF_ERROR(CheckPackOptions(pack));
    if (!pack.predictions.empty() || !pack.anchors.empty() || !pack.probe.empty())
      return Invalid("pack options of all chains cannot have predictions, anchors or probe queries");
    if (request.probe && !CountsProbe(pack))
      return Invalid("a probe counts in policy topology, and in controls of it: leave it out");
  }
  return {};
}

}  // namespace

const char* HandOverName(HandOver hand_over) {
  switch (hand_over) {
    case HandOver::kCards: return "cards";
    case HandOver::kRepacked: return "repacked";
    case HandOver::kSequence: return "sequence";
    case HandOver::kText: return "text";
  }
  return "unknown";
}

bool CountsProbe(const PackOptions& pack) {
  return MeasuredPolicy(pack.policy, pack.control_of) == Policy::kTopology && pack.features.Has(Feature::kProbe);
}

bool KeepsQueries(const HopRequest& request) {
  return Packs(request.hand_over) &&
         std::any_of(request.packs.begin(), request.packs.end(), [&](const PackOptions& pack) {
           const bool may_round = pack.rounding == KeyRounding::kAuto && request.session.flash_attention;
           return pack.policy != Policy::kUniform || pack.rounding == KeyRounding::kQueries || may_round;
         });
}

size_t HopRequest::GroupSize(size_t first) const {
  return std::min(static_cast<size_t>(parallel), chains.size() - first);
}

std::string HopRequest::CardPath(const std::string& chain, size_t hop) const {
  return fmt::format("{}/{}.{}.card", card_folder, chain, hop);
}

Status CheckHopRequest(const Session& session, const HopRequest& request) {
  if (request.hops < 1) return Invalid("give at least one hop");
  if (request.parallel < 1 || request.parallel > session.sequences()) {
    return Invalid(
        fmt::format("{} chains at once, but the session has {} sequences", request.parallel, session.sequences()));
  }
  if (size_t{request.context} * static_cast<size_t>(request.parallel) > session.context()) {
    return Invalid(fmt::format("{} chains of {} tokens do not fit a context of {}", request.parallel, request.context,
                               session.context()));
  }
  if (request.hand_over == HandOver::kCards && !session.fused().ok()) return session.fused();
  const SamplingOptions& sampling = request.generate.sampling;
  if (sampling.temp > 0 && sampling.seed == kRandomSeed) return Invalid("a random seed: give a number as the seed");
  if (Packs(request.hand_over)) QKV_RETURN_IF_ERROR(CheckPacks(request));
  std::set<std::string> ids;
  for (const HopChain& chain : request.chains) {
    QKV_RETURN_IF_ERROR(CheckChain(chain, request));
    if (!ids.insert(chain.id).second) return Invalid(fmt::format("two chains have the id {}", chain.id));
  }
  return {};
}

// Results do not follow from the folder, but a run that goes on with one must not lack the cards of what is done: they
// may have been dropped then, kept elsewhere, or be another run's.
Status CheckKeptCard(const HopRecord& record, const HopRequest& request) {
  if (record.card_bytes == 0) return {};
  std::vector<int32_t> sampled = record.tokens;
  if (record.end_token >= 0) sampled.push_back(record.end_token);
  const std::string path = request.CardPath(record.chain, record.hop);
  const Result<Card> card = Card::Open(path);
  const bool whole = request.hand_over == HandOver::kRepacked;
  const size_t before = whole ? size_t{record.taken_tokens} + record.read_tokens : record.read_tokens;
  if (card && card->file_bytes() == record.card_bytes && card->first_token() == (whole ? 0 : record.taken_tokens) &&
      std::ranges::equal(card->token_ids().subspan(std::min<size_t>(before, card->tokens())), sampled)) {
    return {};
  }
  return Invalid(
      fmt::format("hop {} of chain {} is done by {}, but its card is not in the folder of cards ({}); go on "
                  "with the folder that has it or with none, or choose another file for the results",
                  record.hop, record.chain, request.results, card ? path + " is another" : card.status().message()));
}

}  // namespace qkvshare
