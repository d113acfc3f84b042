#include "eval/hop_kl_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/amounts.h"
#include "base/text.h"
#include "eval/fidelity_tables.h"
#include "eval/hop_kl_arm.h"

namespace qkvshare {
namespace {

constexpr int kKlDecimals = 5;

// A table of a value for each arm and hop from `first` on. columns: of each arm, before those.
TextTable HopTable(const FidelitySummary& summary, size_t first, const std::vector<std::string>& columns,
                   const std::function<std::vector<std::string>(const HopKlRow&)>& facts,
                   const std::function<std::string(const FidelityRow&)>& value) {
  TextTable table;
  table.heads = {"arm"};
  table.heads.insert(table.heads.end(), columns.begin(), columns.end());
  table.heads.insert(table.heads.end(), summary.kinds.begin() + static_cast<ptrdiff_t>(first), summary.kinds.end());
  for (const HopKlRow& row : HopKlRows(summary)) {
    std::vector<std::string> cells = {row.arm};
    const std::vector<std::string> more = facts(row);
    cells.insert(cells.end(), more.begin(), more.end());
    for (size_t hop = first; hop < row.hops.size(); ++hop) cells.push_back(value(*row.hops[hop]));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

std::vector<std::string> Nothing(const HopKlRow& /*row*/) { return {}; }

TextTable KlTable(const FidelitySummary& summary) {
  TextTable table = HopTable(
      summary, 0, {"bits", "with all", "bytes"},
      [](const HopKlRow& row) {
        const FidelityRow& last = *row.hops.back();
        return std::vector<std::string>{fmt::format("{:.2f}", last.code_bits), fmt::format("{:.2f}", last.total_bits),
                                        FormatBytes(static_cast<uint64_t>(last.bytes))};
      },
      [](const FidelityRow& row) { return IntervalText(Shown(row.mean_kl, row.prompts), kKlDecimals); });
  const FidelityRow& all = summary.rows.front();
  table.title = fmt::format("Mean KL of answers by hop: {}, {}", Counted(all.prompts, "conversation"),
                            Counted(all.predictions, "prediction"));
  table.note =
      "KL(F16 || arm) of next-token distributions of the same answers, nats. Bits a channel and bytes are of what the "
      "last hop gets. The first hop comes before any hand-over. In brackets 95% intervals over conversations.";
  if (!summary.left_out.empty()) {
    table.note +=
        fmt::format(" Left out: {} that not every arm has.", Counted(summary.left_out.size(), "conversation"));
  }
  table.note += TooFewText(all.prompts, "conversation");
  return table;
}

TextTable SameTable(const FidelitySummary& summary) {
  TextTable table = HopTable(summary, 0, {}, Nothing, [](const FidelityRow& row) {
    Interval share = Shown(row.same, row.prompts);
    for (double* value : {&share.value, &share.low, &share.high}) *value *= 100;
    return IntervalText(share, 1, "%");
  });
  table.title = "Same top token by hop";
  return table;
}

// Without the first hop, which gets nothing.
TextTable RatioTable(const FidelitySummary& summary, size_t against) {
  TextTable table = HopTable(summary, 1, {}, Nothing, [against](const FidelityRow& row) {
    return IntervalText(Shown(row.against[against].kl_ratio, row.prompts), 3);
  });
  const std::string& base = summary.rows.front().against[against].arm;
  table.title = fmt::format("Mean KL by hop, over that of {}", base);
  std::erase_if(table.rows, [&](const std::vector<std::string>& row) { return row.front() == base; });
  if (base.starts_with("once")) {
    table.note = fmt::format(
        "{} hands over the same tokens once, packed from the F16 sequence: what is above 1 is of handing on again and "
        "again, and not of the tokens that each hop adds.",
        base);
  }
  return table;
}

}  // namespace

Result<FidelitySummary> SummarizeHopKl(std::span<const FidelityLine> lines, std::vector<std::string> against) {
  FidelitySummaryOptions options;
  options.against = std::move(against);
  if (options.against.empty()) {
    std::vector<std::string> arms;
    for (const FidelityLine& line : lines) {
      if (std::find(arms.begin(), arms.end(), line.arm) == arms.end()) arms.push_back(line.arm);
    }
    options.against = HopKlReferences(arms);
  }
  return SummarizeFidelity(lines, options);
}

std::vector<HopKlRow> HopKlRows(const FidelitySummary& summary) {
  std::vector<HopKlRow> rows;
  const bool one_hop = summary.kinds.size() == 1;  // then rows of all kinds are those of the hop
  for (const FidelityRow& row : summary.rows) {
    if (row.kind.empty()) rows.push_back({row.arm, {}});
    if (row.kind.empty() && !one_hop) continue;
    std::find_if(rows.begin(), rows.end(), [&](const HopKlRow& r) { return r.arm == row.arm; })->hops.push_back(&row);
  }
  return rows;
}

std::vector<TextTable> HopKlTables(const FidelitySummary& summary) {
  std::vector<TextTable> tables = {KlTable(summary), SameTable(summary)};
  const FidelityRow& first = summary.rows.front();
  for (size_t i = 0; i < first.against.size() && summary.kinds.size() > 1; ++i) {
    TextTable table = RatioTable(summary, i);
    if (!table.rows.empty()) tables.push_back(std::move(table));
  }
  return tables;
}

std::string HopKlText(const FidelitySummary& summary) {
  std::string text;
  for (const TextTable& table : HopKlTables(summary)) text += (text.empty() ? "" : "\n") + TerminalTable(table);
  return text;
}

}  // namespace qkvshare
