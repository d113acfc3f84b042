#include "eval/fidelity_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/text.h"

namespace qkvshare {
namespace {

constexpr int kKlDecimals = 5;

std::string TitleOf(const FidelityRow& first) {
  return fmt::format("{}: {}, {}, {}", first.kind.empty() ? "All continuations" : "Kind \"" + first.kind + "\"",
                     Counted(first.predictions, "prediction"), Counted(first.continuations, "continuation"),
                     Counted(first.prompts, "prompt"));
}

Interval Percent(Interval share) {
  for (double* value : {&share.value, &share.low, &share.high}) *value *= 100;
  return share;
}

std::vector<std::string> RowOf(const FidelityRow& row) {
  const auto shown = [&](const Interval& interval) { return Shown(interval, row.prompts); };
  return {row.arm,
          fmt::format("{:.2f}", row.code_bits),
          fmt::format("{:.2f}", row.total_bits),
          IntervalText(shown(row.mean_kl), kKlDecimals),
          IntervalText(shown(row.answer_kl), kKlDecimals),
          IntervalText(Percent(shown(row.same)), 1, "%"),
          IntervalText(shown(row.answer_logprob), 4),
          fmt::format("{:.{}f}", row.median_kl, kKlDecimals),
          fmt::format("{:.4f}", row.p99_kl),
          fmt::format("{:.3f}", row.worst_kl),
          row.worst_at};
}

TextTable TableOf(std::span<const FidelityRow> rows) {
  TextTable table;
  table.title = TitleOf(rows.front());
  table.heads = {"arm",    "bits",   "with all", "mean KL", "KL of answers", "same top token",
                 "answer", "median", "p99",      "worst",   "worst at"};
  for (const FidelityRow& row : rows) table.rows.push_back(RowOf(row));
  return table;
}

// Every arm against one of them, over the same predictions.
TextTable ComparisonOf(std::span<const FidelityRow> rows, size_t against) {
  const std::string& base = rows.front().against[against].arm;
  TextTable table;
  table.title = fmt::format(
      "{}, against {}", rows.front().kind.empty() ? "All continuations" : "Kind \"" + rows.front().kind + "\"", base);
  table.heads = {"arm", "KL / " + base, "KL of answers, ratio", "same top token, difference", "answer, difference"};
  for (const FidelityRow& row : rows) {
    if (row.arm == base) continue;
    const FidelityAgainst& other = row.against[against];
    const auto shown = [&](const Interval& interval) { return Shown(interval, row.prompts); };
    table.rows.push_back(
        {row.arm, IntervalText(shown(other.kl_ratio), 3), IntervalText(shown(other.answer_kl_ratio), 3),
         IntervalText(Percent(shown(other.same)), 1, "%"), IntervalText(shown(other.answer_logprob), 4)});
  }
  return table;
}

std::string NoteOf(const FidelitySummary& summary) {
  std::string note =
      "KL(FP16 || arm) of next-token distributions, nats; answer: mean log-probability of its tokens less FP16's; "
      "bits a channel: of codes, and with all bytes; in brackets 95% intervals over prompts, of ratios and differences "
      "over the same prompts.";
  if (!summary.left_out.empty()) {
    note += fmt::format(" Left out: {} that not every arm has.", Counted(summary.left_out.size(), "prompt"));
  }
  for (const FidelityRow& row : summary.rows) {  // the first with too few
    if (const std::string few = TooFewText(row.prompts, "prompt"); !few.empty()) return note + few;
  }
  return note;
}

}  // namespace

Interval Shown(Interval interval, size_t prompts) {
  if (prompts < kFewestPrompts) interval.low = interval.high = Unknown().low;
  return interval;
}

std::string TooFewText(size_t prompts, const std::string& what) {
  if (prompts >= kFewestPrompts) return "";
  return fmt::format(" No intervals with fewer than {} {}s: they would say too much.", kFewestPrompts, what);
}

std::string IntervalText(const Interval& interval, int decimals, const char* unit) {
  if (!std::isfinite(interval.value)) return "-";
  std::string text = fmt::format("{:.{}f}{}", interval.value, decimals, unit);
  if (std::isfinite(interval.low) && std::isfinite(interval.high)) {
    text += fmt::format(" [{:.{}f}, {:.{}f}]", interval.low, decimals, interval.high, decimals);
  }
  return text;
}

std::vector<TextTable> FidelityTables(const FidelitySummary& summary) {
  std::vector<TextTable> tables;
  std::span<const FidelityRow> rest = summary.rows;
  while (!rest.empty()) {
    const auto other =
        std::find_if(rest.begin(), rest.end(), [&](const FidelityRow& row) { return row.kind != rest.front().kind; });
    const std::span<const FidelityRow> rows = rest.first(static_cast<size_t>(other - rest.begin()));
    rest = rest.subspan(rows.size());
    tables.push_back(TableOf(rows));
    if (rows.size() == 1) continue;  // nothing to compare
    for (size_t i = 0; i < rows.front().against.size(); ++i) tables.push_back(ComparisonOf(rows, i));
  }
  if (!tables.empty()) tables.front().note = NoteOf(summary);  // where it is never folded
  return tables;
}

std::string FidelityText(const FidelitySummary& summary) {
  std::string text;
  for (const TextTable& table : FidelityTables(summary)) text += (text.empty() ? "" : "\n") + TerminalTable(table);
  return text;
}

std::string FidelityMarkdown(const FidelitySummary& summary) {
  std::string text;
  for (const TextTable& table : FidelityTables(summary)) text += (text.empty() ? "" : "\n") + MarkdownTable(table);
  return text;
}

}  // namespace qkvshare
