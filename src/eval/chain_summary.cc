#include "eval/chain_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "eval/header_difference.h"
#include "eval/hop_header.h"
#include "eval/model_title.h"
#include "eval/result_file.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;
using HopKey = std::pair<std::string, size_t>;

Status Invalid(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }

// What makes an arm.
bool IsOfTheArm(const std::string& key) {
  for (const char* name : {"arm", "hand_over", "probe", "packs", "cache_type_k", "cache_type_v", "cache_token_bytes",
                           "cache_code_bits", "cache_total_bits"}) {
    if (key == name) return true;
  }
  return false;
}

// What else the first has otherwise than the other; empty: nothing.
std::string DifferenceOf(const Json& first, const Json& header, const DifferenceNames& names) {
  for (const auto& [key, value] : first.items()) {
    if (IsOfTheArm(key) || (header.contains(key) && header[key] == value)) continue;
    return DifferenceText(key, value, header.value(key, Json()), names);
  }
  return header.size() == first.size() ? "" : "header says more of its run, or less";
}

ChainResults ReadHeader(const Json& header) {
  ChainResults results;
  header.at("arm").get_to(results.arm);
  header.at("model").get_to(results.model);
  results.model = ModelTitle(header);
  header.at("model_fingerprint").get_to(results.model_fingerprint);
  header.at("hops").get_to(results.hops);
  header.at("chains").get_to(results.chains);
  if (header.at("hand_over") == HandOverName(HandOver::kSequence)) {
    header.at("cache_code_bits").get_to(results.cache_code_bits);
    header.at("cache_total_bits").get_to(results.cache_total_bits);
    header.at("cache_token_bytes").get_to(results.cache_token_bytes);
  }
  return results;
}

ChainAnswer ReadLine(const Json& line) {
  ChainAnswer answer;
  line.at("chain").get_to(answer.chain);
  line.at("hop").get_to(answer.hop);
  line.at("right").get_to(answer.right);
  line.at("marked").get_to(answer.marked);
  line.at("truncated").get_to(answer.truncated);
  line.at("card_tokens").get_to(answer.card_tokens);
  line.at("card_bytes").get_to(answer.card_bytes);
  line.at("code_bits").get_to(answer.code_bits);
  line.at("total_bits").get_to(answer.total_bits);
  return answer;
}

Result<ChainResults> ReadOne(const std::string& path, const Results& file) {
  try {
    ChainResults results = ReadHeader(file.header);
    for (const Json& line : file.lines) {
      results.answers.push_back(ReadLine(line));
      if (results.answers.back().hop >= results.hops)
        return Status(StatusCode::kCorrupt, path + ": a line is of a hop that the run does not have");
    }
    return results;
  } catch (const nlohmann::json::exception& e) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: {}", path, e.what()));
  }
}

Result<Results> ReadChainFile(const std::string& path) {
  QKV_ASSIGN_OR_RETURN(Results file, ReadResults(path, kHopKind));
  if (!file.header.contains("task") || file.header["task"] != kChainTask)
    return Invalid(path + ": is no file of eval chain");
  return file;
}

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

std::map<HopKey, bool> RightByProblem(const ChainResults& results) {
  std::map<HopKey, bool> right;
  for (const ChainAnswer& answer : results.answers) right[{answer.chain, answer.hop}] = answer.right;
  return right;
}

// At every hop.
std::vector<ChainPair> Compare(const ChainResults& results, const ChainResults& against) {
  std::vector<ChainPair> pairs(results.hops);
  for (size_t hop = 0; hop < results.hops; ++hop) {
    pairs[hop].arm = results.arm;
    pairs[hop].against = against.arm;
    pairs[hop].hop = hop;
  }
  const std::map<HopKey, bool> others = RightByProblem(against);
  for (const auto& [key, right] : RightByProblem(results)) {
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

Status CheckChainHeader(const Json& header, const std::string& beside) {
  QKV_ASSIGN_OR_RETURN(const Results file, ReadChainFile(beside));
  const std::string difference = DifferenceOf(file.header, header, {"there", "now"});
  if (difference.empty()) return {};
  return Invalid(fmt::format("{} is of another run than this one: its {}; use what it was made with, or another folder",
                             beside, difference));
}

Result<std::vector<ChainResults>> ReadChainResults(std::span<const std::string> paths) {
  std::vector<ChainResults> all;
  Json first;
  for (const std::string& path : paths) {
    QKV_ASSIGN_OR_RETURN(const Results file, ReadChainFile(path));
    if (all.empty()) first = file.header;
    if (const std::string difference = DifferenceOf(first, file.header, {}); !difference.empty()) {
      return Invalid(fmt::format("{} and {} cannot be compared: their {}; keep the runs apart, in folders of their own",
                                 paths.front(), path, difference));
    }
    QKV_ASSIGN_OR_RETURN(ChainResults results, ReadOne(path, file));
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].arm == results.arm)
        return Invalid(fmt::format("{} and {} are both of arm {}: give one of them", paths[i], path, results.arm));
    }
    all.push_back(std::move(results));
  }
  return all;
}

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
    }
    Adjust(summary.hops, &pairs);
    summary.pairs.insert(summary.pairs.end(), pairs.begin(), pairs.end());
  }
  return summary;
}

}  // namespace qkvshare
