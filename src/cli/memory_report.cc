#include "cli/memory_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/terminal.h"

namespace qkvshare::cli {
namespace {

std::string ContextText(const MemoryReport& report, const MemoryLine& line) {
  const std::optional<int64_t> context = ContextOf(report.lines, line);
  return context ? SignedBytes(*context) : "";
}

void PrintAgents(const MemoryReport& report) {
  fmt::print("  {:<10}  {:<6}  {:>6}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}\n", "shape", "has", "agents", "private",
             "context", "peak", "files", "taken");
  for (const MemoryLine& line : report.lines) {
    if (line.shape == kHopShape) continue;
    fmt::print("  {:<10}  {:<6}  {:>6}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}\n", line.shape, line.content, line.number,
               SignedBytes(HeldOf(line)), ContextText(report, line), SignedBytes(PeakOf(line)),
               FormatBytes(line.shared_bytes), line.taken_bytes > 0 ? FormatBytes(line.taken_bytes) : "");
  }
  fmt::print(
      "  contexts: one process, a context of llama.cpp each; sequences: one context for all; processes: one each\n"
      "  private: of all agents, beside the weights; context: of that, more than agents without the context have;\n"
      "  peak: the most at a time, beside the weights; files: weights and cards in memory, once for all processes;\n"
      "  taken: the file that every agent takes the context from\n");
}

void PrintHops(const MemoryReport& report) {
  fmt::print("  {:<6}  {:>3}  {:>6}  {:>9}  {:>9}  {:>9}  {:>9}\n", "has", "hop", "tokens", "private", "peak", "taken",
             "handed on");
  for (const MemoryLine& line : report.lines) {
    if (line.shape != kHopShape) continue;
    fmt::print("  {:<6}  {:>3}  {:>6}  {:>9}  {:>9}  {:>9}  {:>9}\n", line.content, line.number, line.tokens,
               SignedBytes(HeldOf(line)), SignedBytes(PeakOf(line)), FormatBytes(line.taken_bytes),
               FormatBytes(line.handed_bytes));
  }
  fmt::print("  taken: files with all that came before; handed on: a card of the hop's own tokens, or a whole state\n");
}

}  // namespace

void PrintMemory(const std::string& model, const MemoryRequest& request, const MemoryReport& report) {
  fmt::print("{}: a context of {} tokens, {} of rows in FP16; cards at {} bits\n", Printable(model), request.depth,
             FormatBytes(report.context_bytes), request.bits);
  if (!request.agents.empty()) {
    fmt::print("\nAgents that share it, after {} tokens more each\n", request.suffix);
    PrintAgents(report);
  }
  if (!request.hops.empty()) {
    fmt::print("\nA chain that starts with it, of hops that add {} tokens\n", request.hop_tokens);
    PrintHops(report);
  }
  for (const auto& [content, why] : report.header["left_out"].items())
    fmt::print("without {}: {}\n", content, why.get<std::string>());
}

nlohmann::ordered_json MemoryReportJson(const MemoryReport& report) {
  nlohmann::ordered_json json = report.header;
  json["lines"] = nlohmann::ordered_json::array();
  for (const MemoryLine& line : report.lines) json["lines"].push_back(MemoryJson(line));
  return json;
}

}  // namespace qkvshare::cli
