#include "eval/fidelity_tables.h"

#include <fmt/format.h>

#include <cmath>

namespace qkvshare {
namespace {

constexpr int kKlDecimals = 5;

TextTable TableOf(const FidelityRow& first) {
  TextTable table;
  table.title = fmt::format("{}: {} predictions, {} continuations, {} prompts",
                            first.kind.empty() ? "All continuations" : "Kind \"" + first.kind + "\"", first.predictions,
                            first.continuations, first.prompts);
  table.heads = {"arm", "bits", "with all", "mean KL", "median", "p99", "worst", "same top token", "answer"};
  for (const FidelityAgainst& other : first.against) table.heads.push_back("KL / " + other.arm);
  return table;
}

std::vector<std::string> RowOf(const FidelityRow& row) {
  Interval percent = row.same;
  for (double* value : {&percent.value, &percent.low, &percent.high}) *value *= 100;
  std::vector<std::string> cells = {row.arm,
                                    fmt::format("{:.2f}", row.code_bits),
                                    fmt::format("{:.2f}", row.total_bits),
                                    IntervalText(row.mean_kl, kKlDecimals),
                                    fmt::format("{:.{}f}", row.median_kl, kKlDecimals),
                                    fmt::format("{:.4f}", row.p99_kl),
                                    fmt::format("{:.3f}", row.worst_kl),
                                    fmt::format("{:.1f}%", percent.value),
                                    fmt::format("{:+.4f}", row.answer_logprob.value)};
  for (const FidelityAgainst& other : row.against) {
    cells.push_back(other.arm == row.arm ? "1" : IntervalText(other.kl_ratio, 3));
  }
  return cells;
}

std::string NoteOf(const FidelitySummary& summary) {
  std::string note =
      "KL(FP16 || arm) of next-token distributions, nats; answer: mean log-probability of its tokens less FP16's; "
      "bits a channel: of codes, and with all bytes; in brackets 95% intervals over prompts.";
  if (!summary.left_out.empty()) {
    note += fmt::format(" Left out: {} prompts that not every arm has.", summary.left_out.size());
  }
  return note;
}

}  // namespace

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
  const FidelityRow* last = nullptr;
  for (const FidelityRow& row : summary.rows) {
    if (last == nullptr || last->kind != row.kind) tables.push_back(TableOf(row));
    tables.back().rows.push_back(RowOf(row));
    last = &row;
  }
  if (!tables.empty()) tables.back().note = NoteOf(summary);
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
