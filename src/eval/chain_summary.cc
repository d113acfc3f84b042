#include "eval/chain_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace qkvshare {
namespace {

Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }

// Chains of which there is every hop, and the bytes of their cards.
void CountWholeChains(const ChainResults& results, ChainArmRow* row) {
  std::map<std::string, std::pair<size_t, size_t>> chains;  // hops, bytes
  for (const ChainAnswer& answer : results.answers) {
    ++chains[answer.chain].first;
    chains[answer.chain].second += answer.card_bytes;
  }
  for (const auto& [chain, sums] : chains) {
    if (sums.first != results.hops) continue;
    ++row->chains;
    row->chain_bytes += static_cast<double>(sums.second);
  }
  if (row->chains > 0) row->chain_bytes /= static_cast<double>(row->chains);
}

void SumHandedOn(const ChainResults& results, ChainArmRow* row) {
  if (results.cache_total_bits > 0) {
    row->code_bits = results.cache_code_bits;
    row->total_bits = results.cache_total_bits;
    row->token_bytes = results.cache_token_bytes;
    return;
  }
  double tokens = 0;
  for (const ChainAnswer& answer : results.answers) {
    const auto n = static_cast<double>(answer.card_tokens);
    tokens += n;
    row->code_bits += n * answer.code_bits;
    row->total_bits += n * answer.total_bits;
    row->token_bytes += static_cast<double>(answer.card_bytes);
  }
  if (tokens == 0) return;
  for (double* sum : {&row->code_bits, &row->total_bits, &row->token_bytes}) *sum /= tokens;
}

ChainArmRow RowOf(const ChainResults& results) {
  ChainArmRow row;
  row.arm = results.arm;
  row.planned = results.chains;
  row.hops.resize(results.hops);
  for (const ChainAnswer& answer : results.answers) {
    ChainHopRow& hop = row.hops[answer.hop];
    ++hop.answers;
    hop.right += answer.right ? 1 : 0;
    hop.unmarked += answer.marked ? 0 : 1;
    hop.truncated += answer.truncated ? 1 : 0;
  }
  for (ChainHopRow& hop : row.hops) {
    hop.accuracy = WilsonInterval(hop.right, hop.answers);
    row.answers += hop.answers;
    row.unmarked += hop.unmarked;
    row.truncated += hop.truncated;
  }
  CountWholeChains(results, &row);
  SumHandedOn(results, &row);
  return row;
}

// At every hop.
std::vector<ChainPair> Compare(const ChainResults& results, const ChainResults& against) {
  std::vector<ChainPair> pairs(results.hops);
  for (size_t hop = 0; hop < results.hops; ++hop) {
    pairs[hop].arm = results.arm;
    pairs[hop].against = against.arm;
    pairs[hop].hop = hop;
  }
  const std::map<HopKey, bool> others = RightAnswers(against);
  for (const auto& [key, right] : RightAnswers(results)) {
    const auto other = others.find(key);
    if (other == others.end()) continue;
    ChainPair& pair = pairs[key.second];
    ++pair.problems;
    pair.wins += right && !other->second ? 1 : 0;
    pair.losses += !right && other->second ? 1 : 0;
  }
  for (ChainPair& pair : pairs) pair.p = McNemarExact(pair.wins, pair.losses);
  return pairs;
}

// The first `hops` pairs are of the first arm, and so on.
void Adjust(size_t hops, std::vector<ChainPair>* pairs) {
  for (size_t hop = 0; hop < hops; ++hop) {
    std::vector<double> p_values;
    for (size_t i = hop; i < pairs->size(); i += hops) p_values.push_back((*pairs)[i].p);
    const std::vector<double> adjusted = HolmAdjusted(p_values);
    for (size_t i = 0; i < adjusted.size(); ++i) (*pairs)[i * hops + hop].adjusted_p = adjusted[i];
  }
}

}  // namespace

size_t MostChains(const ChainSummary& summary) {
  size_t most = 0;
  for (const ChainArmRow& arm : summary.arms) most = std::max(most, arm.chains);
  return most;
}

bool SameProblems(const ChainSummary& summary) {
  const size_t most = MostChains(summary);
  return std::all_of(summary.arms.begin(), summary.arms.end(),
                     [most](const ChainArmRow& arm) { return arm.chains == most; });
}

Result<ChainSummary> SummarizeChains(std::span<const ChainResults> results, std::span<const std::string> against) {
  if (results.empty()) return Invalid("there are no results to compare");
  ChainSummary summary;
  summary.model = results.front().model;
  summary.hops = results.front().hops;
  std::string known;
  for (const ChainResults& arm : results) {
    summary.arms.push_back(RowOf(arm));
    known += fmt::format("{}{}", known.empty() ? "" : ", ", arm.arm);
  }
  std::vector<std::string> references(against.begin(), against.end());
  if (references.empty()) {
    const bool has =
        std::any_of(results.begin(), results.end(), [](const auto& r) { return r.arm == kChainReference; });
    references.push_back(has ? kChainReference : results.front().arm);
  }
  for (const std::string& name : references) {
    const auto reference = std::find_if(results.begin(), results.end(), [&](const auto& r) { return r.arm == name; });
    if (reference == results.end()) return Invalid(fmt::format("there is no arm {} to compare with: {}", name, known));
    std::vector<ChainPair> pairs;
    for (const ChainResults& arm : results) {
      if (arm.arm == name) continue;
      const std::vector<ChainPair> of_arm = Compare(arm, *reference);
      pairs.insert(pairs.end(), of_arm.begin(), of_arm.end());
      summary.differences.push_back({arm.arm, name, DifferenceAfterHandOver(arm, *reference)});
    }
    Adjust(summary.hops, &pairs);
    summary.pairs.insert(summary.pairs.end(), pairs.begin(), pairs.end());
  }
  return summary;
}

}  // namespace qkvshare
