#include "eval/chain_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/amounts.h"
#include "eval/fidelity_tables.h"
#include "eval/hop_record.h"

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

double Share(size_t part, size_t all) { return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all); }
std::string Percent(size_t part, size_t all) { return all == 0 ? "-" : fmt::format("{:.1f}%", 100 * Share(part, all)); }
std::string Known(double value, int digits) { return value == 0 ? "-" : fmt::format("{:.{}f}", value, digits); }

std::string AccuracyText(const ChainHopRow& hop) {
  if (hop.answers == 0) return "-";
  return fmt::format("{:.1f}% [{:.1f}, {:.1f}]", 100 * hop.accuracy.value, 100 * hop.accuracy.low,
                     100 * hop.accuracy.high);
}

TextTable ArmTable(const ChainSummary& summary) {
  TextTable table;
  table.title = fmt::format("Right answers to problems of GSM8K after each hop, {}", summary.model);
  table.heads = {"arm", "bits", "in all", "bytes a token", "a chain", "problems", "truncated", "unmarked"};
  for (size_t hop = 0; hop < summary.hops; ++hop) table.heads.push_back(HopName(hop));
  table.note = "Intervals of 95% (Wilson). A chain: bytes of all cards that it hands on.";
  if (!SameProblems(summary))
    table.note += " Not all arms are done: their shares are of other problems; compare arms by the tables of pairs.";
  for (const ChainArmRow& arm : summary.arms) {
    Row row = {
        arm.arm,
        Known(arm.code_bits, 2),
        Known(arm.total_bits, 2),
        Known(arm.token_bytes, 0),
        arm.chain_bytes == 0 ? "-" : FormatBytes(static_cast<uint64_t>(arm.chain_bytes)),
        arm.chains == arm.planned ? std::to_string(arm.chains) : fmt::format("{} of {}", arm.chains, arm.planned),
        Percent(arm.truncated, arm.answers),
        Percent(arm.unmarked, arm.answers)};
    for (const ChainHopRow& hop : arm.hops) row.push_back(AccuracyText(hop));
    table.rows.push_back(std::move(row));
    if (Share(arm.truncated, arm.answers) <= kMostTruncated) continue;
    table.note += fmt::format(
        " {}: more than {:.0f}% of the answers are truncated, so that the limit of tokens (--predict) is measured too.",
        arm.arm, 100 * kMostTruncated);
  }
  return table;
}

std::vector<std::string> References(const ChainSummary& summary) {
  std::vector<std::string> names;
  for (const ChainPair& pair : summary.pairs) {
    if (names.empty() || names.back() != pair.against) names.push_back(pair.against);
  }
  return names;
}

const ChainDifference& DifferenceOf(const ChainSummary& summary, const std::string& arm, const std::string& against) {
  return std::find_if(summary.differences.begin(), summary.differences.end(),
                      [&](const ChainDifferenceRow& row) { return row.arm == arm && row.against == against; })
      ->difference;
}

std::string DifferenceText(const ChainDifference& difference) {
  const Interval right = Shown(difference.right, difference.blocks);
  if (std::isnan(right.value)) return "-";
  if (std::isnan(right.low)) return fmt::format("{:+.1f}", 100 * right.value);
  return fmt::format("{:+.1f} [{:+.1f}, {:+.1f}]", 100 * right.value, 100 * right.low, 100 * right.high);
}

TextTable PairTable(const ChainSummary& summary, const std::string& against) {
  TextTable table;
  table.title = fmt::format("Against {} on the same problems", against);
  table.heads = {"arm", "problems"};
  for (size_t hop = 0; hop < summary.hops; ++hop) table.heads.push_back(HopName(hop));
  if (summary.hops > 1) table.heads.emplace_back("from hop 2 on");
  for (const ChainPair& pair : summary.pairs) {
    if (pair.against != against) continue;
    if (pair.hop == 0) table.rows.push_back({pair.arm, std::to_string(pair.problems)});
    table.rows.back().push_back(
        fmt::format("+{} -{}, p {:.3g} ({:.3g})", pair.wins, pair.losses, pair.p, pair.adjusted_p));
    if (pair.hop > 0 && pair.hop + 1 == summary.hops)
      table.rows.back().push_back(DifferenceText(DifferenceOf(summary, pair.arm, against)));
  }
  table.note =
      "+ right where it is wrong, - wrong where it is right; p of the exact McNemar test, (by Holm over the arms of a "
      "hop, not over hops). From hop 2 on: difference of the shares of right answers, in points, with an interval of "
      "95% "
      "over blocks of chains that share problems.";
  return table;
}

Json HopsJson(const ChainArmRow& arm) {
  Json hops = Json::array();
  for (size_t i = 0; i < arm.hops.size(); ++i) {
    const ChainHopRow& hop = arm.hops[i];
    hops.push_back({{"hop", i + 1},
                    {"answers", hop.answers},
                    {"right", hop.right},
                    {"unmarked", hop.unmarked},
                    {"truncated", hop.truncated},
                    {"accuracy", hop.accuracy.value},
                    {"accuracy_low", hop.accuracy.low},
                    {"accuracy_high", hop.accuracy.high}});
  }
  return hops;
}

}  // namespace

std::vector<TextTable> ChainTables(const ChainSummary& summary) {
  std::vector<TextTable> tables = {ArmTable(summary)};
  for (const std::string& against : References(summary)) tables.push_back(PairTable(summary, against));
  return tables;
}

std::string ChainText(const ChainSummary& summary) {
  std::string text;
  for (const TextTable& table : ChainTables(summary)) text += (text.empty() ? "" : "\n") + TerminalTable(table);
  return text;
}

std::string ChainMarkdown(const ChainSummary& summary) {
  std::string text;
  for (const TextTable& table : ChainTables(summary)) text += (text.empty() ? "" : "\n") + MarkdownTable(table);
  return text;
}

Json ChainJson(const ChainSummary& summary) {
  Json arms = Json::array();
  for (const ChainArmRow& arm : summary.arms) {
    arms.push_back({{"arm", arm.arm},
                    {"problems", arm.chains},
                    {"planned", arm.planned},
                    {"code_bits", arm.code_bits},
                    {"total_bits", arm.total_bits},
                    {"token_bytes", arm.token_bytes},
                    {"chain_bytes", arm.chain_bytes},
                    {"unmarked", arm.unmarked},
                    {"truncated", arm.truncated},
                    {"hops", HopsJson(arm)}});
  }
  Json pairs = Json::array();
  for (const ChainPair& pair : summary.pairs) {
    pairs.push_back({{"arm", pair.arm},
                     {"against", pair.against},
                     {"hop", pair.hop + 1},
                     {"problems", pair.problems},
                     {"wins", pair.wins},
                     {"losses", pair.losses},
                     {"p", pair.p},
                     {"adjusted_p", pair.adjusted_p}});
  }
  Json differences = Json::array();
  for (const ChainDifferenceRow& row : summary.differences) {
    differences.push_back({{"arm", row.arm},
                           {"against", row.against},
                           {"blocks", row.difference.blocks},
                           {"answers", row.difference.answers},
                           {"right", row.difference.right.value},
                           {"low", row.difference.right.low},
                           {"high", row.difference.right.high}});
  }
  return {{"model", summary.model}, {"arms", arms}, {"pairs", pairs}, {"differences", differences}};
}

}  // namespace qkvshare
