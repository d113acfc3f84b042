#include "eval/fidelity_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace qkvshare {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kIntervalSeed = 1;  // one for all: the same lines always have the same intervals

// The place of an item in a list that grows by what is new.
size_t IndexOf(const std::string& item, std::vector<std::string>* items) {
  const auto found = std::find(items->begin(), items->end(), item);
  if (found != items->end()) return static_cast<size_t>(found - items->begin());
  items->push_back(item);
  return items->size() - 1;
}

std::string NameOf(const FidelityLine& line) { return line.prompt + "/" + line.continuation; }

// The lines of all arms by prompt, without prompts that an arm lacks, or has only in part.
class Table {
 public:
  struct Place {
    size_t prompt, arm;
    const FidelityLine* line;
  };

  // kInvalidArgument where lines contradict each other.
  Status Fill(std::span<const FidelityLine> lines) {
    for (const FidelityLine& line : lines) QKV_RETURN_IF_ERROR(Add(line));
    const auto is_whole = [&](size_t prompt) {
      const Prompt& there = prompts_[prompt];
      return there.lines.size() == arms_.size() * there.continuations.size();
    };
    for (size_t i = 0; i < prompts_.size(); ++i) {
      if (!is_whole(i)) left_out_.push_back(names_[i]);
    }
    std::erase_if(lines_, [&](const Place& place) { return !is_whole(place.prompt); });
    return {};
  }

  const std::vector<Place>& lines() const { return lines_; }
  const std::vector<std::string>& arms() const { return arms_; }
  size_t prompts() const { return names_.size(); }
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  struct Prompt {
    std::map<std::string, const FidelityLine*> continuations;  // a line of each, of any arm
    std::set<std::pair<std::string, size_t>> lines;            // continuations and arms
  };

  Status Add(const FidelityLine& line) {
    const size_t index = IndexOf(line.prompt, &names_), arm = IndexOf(line.arm, &arms_);
    prompts_.resize(names_.size());
    Prompt& prompt = prompts_[index];
    if (!prompt.lines.insert({line.continuation, arm}).second) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{} is there twice with arm {}; give each file once", NameOf(line), line.arm)};
    }
    const FidelityLine& other = *prompt.continuations.try_emplace(line.continuation, &line).first->second;
    if (other.kl.size() != line.kl.size() || other.answer_tokens != line.answer_tokens || other.kind != line.kind) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{} is another continuation with arm {} than with {}: they are of different runs",
                          NameOf(line), line.arm, other.arm)};
    }
    lines_.push_back({index, arm, &line});
    return {};
  }

  std::vector<std::string> names_, arms_, left_out_;
  std::vector<Prompt> prompts_;
  std::vector<Place> lines_;
};

// What an arm adds up to with one kind of continuation, prompt by prompt.
struct Sums {
  std::vector<ClusterSum> kl, same, answer, answer_kl;  // one a prompt
  std::vector<double> all_kl;
};

struct Cell {
  Sums sums;
  FidelityRow row;
};

void Add(double sum_of_values, size_t values, ClusterSum* sum) {
  sum->sum += sum_of_values;
  sum->count += static_cast<double>(values);
}

void AddLine(const FidelityLine& line, size_t cluster, Cell* cell) {
  FidelityRow& row = cell->row;
  for (size_t i = 0; i < line.kl.size(); ++i) {
    Add(line.kl[i], 1, &cell->sums.kl[cluster]);
    if (i + line.answer_tokens >= line.kl.size()) Add(line.kl[i], 1, &cell->sums.answer_kl[cluster]);
    if (row.worst_at.empty() || line.kl[i] > row.worst_kl) {
      row.worst_kl = line.kl[i];
      row.worst_at = NameOf(line);
    }
  }
  Add(static_cast<double>(line.kl.size() - line.other.size()), line.kl.size(), &cell->sums.same[cluster]);
  Add(line.answer_logprob - line.ref_answer_logprob, line.answer_tokens, &cell->sums.answer[cluster]);
  cell->sums.all_kl.insert(cell->sums.all_kl.end(), line.kl.begin(), line.kl.end());
  row.continuations += 1;
  row.predictions += line.kl.size();
  row.code_bits += line.code_bits;
  row.total_bits += line.total_bits;
  row.bytes += static_cast<double>(line.bytes);
}

// The value of the nearest rank: of n in order, that at round(share * (n - 1)). values: not empty; their order changes.
double Quantile(std::vector<double>* values, double share) {
  const auto at = std::lround(share * static_cast<double>(values->size() - 1));
  std::nth_element(values->begin(), values->begin() + at, values->end());
  return (*values)[static_cast<size_t>(at)];
}

void Finish(const Bootstrap& bootstrap, Cell* cell) {
  FidelityRow& row = cell->row;
  const auto continuations = static_cast<double>(row.continuations);
  for (double* sum : {&row.code_bits, &row.total_bits, &row.bytes}) *sum /= continuations;
  row.prompts = cell->sums.kl.size();
  row.mean_kl = bootstrap.Mean(cell->sums.kl);
  row.answer_kl = bootstrap.Mean(cell->sums.answer_kl);
  row.same = bootstrap.Mean(cell->sums.same);
  row.answer_logprob = bootstrap.Mean(cell->sums.answer);
  row.median_kl = Quantile(&cell->sums.all_kl, 0.5);
  row.p99_kl = Quantile(&cell->sums.all_kl, 0.99);
}

// The sums of one kind, of all where it is empty, arm by arm. Prompts without this kind are no clusters.
std::vector<Cell> CellsOf(const Table& table, const std::string& kind) {
  const auto counts = [&](const Table::Place& place) { return kind.empty() || place.line->kind == kind; };
  constexpr size_t kNone = SIZE_MAX;
  std::vector<size_t> cluster_of(table.prompts(), kNone);
  size_t clusters = 0;
  for (const Table::Place& place : table.lines()) {
    if (counts(place) && cluster_of[place.prompt] == kNone) cluster_of[place.prompt] = clusters++;
  }
  std::vector<Cell> cells(table.arms().size());
  for (size_t i = 0; i < cells.size(); ++i) {
    cells[i].row.arm = table.arms()[i];
    cells[i].row.kind = kind;
    Sums& sums = cells[i].sums;
    for (auto* sum : {&sums.kl, &sums.same, &sums.answer, &sums.answer_kl}) sum->resize(clusters);
  }
  for (const Table::Place& place : table.lines()) {
    if (counts(place)) AddLine(*place.line, cluster_of[place.prompt], &cells[place.arm]);
  }
  return cells;
}

std::vector<FidelityRow> RowsOf(const Table& table, const std::string& kind, const std::vector<std::string>& against,
                                const Bootstrap& bootstrap) {
  std::vector<Cell> cells = CellsOf(table, kind);
  std::vector<FidelityRow> rows;
  for (Cell& cell : cells) {
    Finish(bootstrap, &cell);
    for (const std::string& name : against) {
      const auto base = std::find_if(cells.begin(), cells.end(), [&](const Cell& c) { return c.row.arm == name; });
      cell.row.against.push_back({name, bootstrap.Ratio(cell.sums.kl, base->sums.kl),
                                  bootstrap.Ratio(cell.sums.answer_kl, base->sums.answer_kl),
                                  bootstrap.Difference(cell.sums.same, base->sums.same),
                                  bootstrap.Difference(cell.sums.answer, base->sums.answer)});
    }
    rows.push_back(cell.row);
  }
  return rows;
}

Json NumberJson(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json IntervalJson(const Interval& interval) {
  return {
      {"value", NumberJson(interval.value)}, {"low", NumberJson(interval.low)}, {"high", NumberJson(interval.high)}};
}

Json RowJson(const FidelityRow& row) {
  Json against = Json::array();
  for (const FidelityAgainst& other : row.against) {
    against.push_back({{"arm", other.arm},
                       {"kl_ratio", IntervalJson(other.kl_ratio)},
                       {"answer_kl_ratio", IntervalJson(other.answer_kl_ratio)},
                       {"same", IntervalJson(other.same)},
                       {"answer_logprob", IntervalJson(other.answer_logprob)}});
  }
  return {{"arm", row.arm},
          {"kind", row.kind.empty() ? "all" : row.kind},
          {"prompts", row.prompts},
          {"continuations", row.continuations},
          {"predictions", row.predictions},
          {"code_bits", row.code_bits},
          {"total_bits", row.total_bits},
          {"bytes", row.bytes},
          {"mean_kl", IntervalJson(row.mean_kl)},
          {"answer_kl", IntervalJson(row.answer_kl)},
          {"median_kl", row.median_kl},
          {"p99_kl", row.p99_kl},
          {"worst_kl", row.worst_kl},
          {"worst_at", row.worst_at},
          {"same", IntervalJson(row.same)},
          {"answer_logprob", IntervalJson(row.answer_logprob)},
          {"against", against}};
}

}  // namespace

Json FidelityLineJson(const FidelityLine& line) {
  return {{"prompt", line.prompt},
          {"continuation", line.continuation},
          {"kind", line.kind},
          {"arm", line.arm},
          {"bytes", line.bytes},
          {"code_bits", line.code_bits},
          {"total_bits", line.total_bits},
          {"answer_tokens", line.answer_tokens},
          {"answer_logprob", line.answer_logprob},
          {"ref_answer_logprob", line.ref_answer_logprob},
          {"kl", line.kl},
          {"other", line.other}};
}

Result<FidelityLine> ParseFidelityLine(const Json& json) {
  FidelityLine line;
  try {
    json.at("prompt").get_to(line.prompt);
    json.at("continuation").get_to(line.continuation);
    json.at("kind").get_to(line.kind);
    json.at("arm").get_to(line.arm);
    json.at("bytes").get_to(line.bytes);
    json.at("code_bits").get_to(line.code_bits);
    json.at("total_bits").get_to(line.total_bits);
    json.at("answer_tokens").get_to(line.answer_tokens);
    json.at("kl").get_to(line.kl);
    json.at("other").get_to(line.other);
    json.at("answer_logprob").get_to(line.answer_logprob);
    json.at("ref_answer_logprob").get_to(line.ref_answer_logprob);
  } catch (const nlohmann::json::exception& e) {
    return Status(StatusCode::kCorrupt, e.what());
  }
  const bool ascending =
      std::adjacent_find(line.other.begin(), line.other.end(), std::greater_equal<>()) == line.other.end();
  if (line.kl.empty() || line.answer_tokens > line.kl.size() || !ascending ||
      (!line.other.empty() && line.other.back() >= line.kl.size())) {
    return Status(StatusCode::kCorrupt, "kl, other and answer_tokens are not of the same predictions");
  }
  return line;
}

Result<FidelitySummary> SummarizeFidelity(std::span<const FidelityLine> lines, const FidelitySummaryOptions& options) {
  Table table;
  QKV_RETURN_IF_ERROR(table.Fill(lines));
  FidelitySummary summary;
  summary.left_out = table.left_out();
  if (table.lines().empty()) {
    return Status(StatusCode::kInvalidArgument,
                  lines.empty() ? "there are no results yet" : "no prompt has results of every arm yet");
  }
  std::vector<std::string> against = options.against;
  if (against.empty()) against.push_back(table.arms().front());
  for (const std::string& name : against) {
    if (std::find(table.arms().begin(), table.arms().end(), name) != table.arms().end()) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("there is no arm '{}'; there are {}", name, fmt::join(table.arms(), ", ")));
  }
  for (const Table::Place& place : table.lines()) IndexOf(place.line->kind, &summary.kinds);
  const Bootstrap bootstrap(kIntervalSeed);
  std::vector<std::string> kinds = {""};
  if (summary.kinds.size() > 1) kinds.insert(kinds.end(), summary.kinds.begin(), summary.kinds.end());
  for (const std::string& kind : kinds) {
    const std::vector<FidelityRow> rows = RowsOf(table, kind, against, bootstrap);
    summary.rows.insert(summary.rows.end(), rows.begin(), rows.end());
  }
  return summary;
}

Json FidelityJson(const FidelitySummary& summary) {
  Json rows = Json::array();
  for (const FidelityRow& row : summary.rows) rows.push_back(RowJson(row));
  return {{"rows", rows}, {"left_out_prompts", summary.left_out}};
}

}  // namespace qkvshare
