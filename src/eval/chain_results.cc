#include "eval/chain_results.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "eval/header_difference.h"
#include "eval/hop_header.h"
#include "eval/hop_request.h"
#include "eval/model_title.h"
#include "eval/result_file.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

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
  line.at("problem").get_to(answer.problem);
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
  if (file.header[kHopKind] != kHopVersion)
    return Invalid(path + ": is of an earlier version of this software; make it anew, in another folder");
  if (!file.header.contains("task") || file.header["task"] != kChainTask)
    return Invalid(path + ": is no file of eval chain");
  return file;
}

}  // namespace

Status CheckChainHeader(const Json& header, const std::string& beside) {
  QKV_ASSIGN_OR_RETURN(const Results file, ReadChainFile(beside));
  const std::string difference = DifferenceOf(file.header, header, {"there", "now"});
  if (difference.empty()) return {};
  return Invalid(fmt::format("{} is of another run than this one: its {}; use what it was made with, or another folder",
                             beside, difference));
}

std::map<HopKey, bool> RightAnswers(const ChainResults& results) {
  std::map<HopKey, bool> right;
  for (const ChainAnswer& answer : results.answers) right[{answer.chain, answer.hop}] = answer.right;
  return right;
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

}  // namespace qkvshare
