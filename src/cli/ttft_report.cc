#include "cli/ttft_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cli/terminal.h"

namespace qkvshare::cli {
namespace {

std::string StagesText(const TtftLine& line) {
  std::string text;
  for (const StageSpread& stage : line.stages) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", stage.name, FormatUs(stage.time.median_us));
  }
  return text;
}

void PrintLine(const TtftLine& line) {
  const std::string speedup = line.speedup > 0 ? fmt::format("{:.1f}x", line.speedup) : "";
  fmt::print("  {:<13}  {:>4}  {:>9}  {:>9}  {:>9}  {:>9}  {:>7}\n", line.way, line.runs, FormatBytes(line.bytes),
             FormatUs(line.total.median_us), FormatUs(line.total.least_us), FormatUs(line.total.most_us), speedup);
  fmt::print("    {}\n", StagesText(line));
  if (!line.write) return;
  fmt::print("    (its sender: writing the file {}, {} to {})\n", FormatUs(line.write->median_us),
             FormatUs(line.write->least_us), FormatUs(line.write->most_us));
}

}  // namespace

void PrintTtft(std::span<const TtftLine> lines) {
  fmt::print("{} tokens", lines.front().depth);
  for (const TtftLine& line : lines) {
    if (line.way != kSenderWay) continue;
    fmt::print(": card {}, {:.2f} bits a channel, {:.2f} with everything", FormatBytes(line.bytes), line.code_bits,
               line.total_bits);
  }
  fmt::print("\n  {:<13}  {:>4}  {:>9}  {:>9}  {:>9}  {:>9}  {:>7}\n", "way", "runs", "bytes", "median", "least",
             "most", "faster");
  for (const TtftLine& line : lines) PrintLine(line);
}

nlohmann::ordered_json TtftReportJson(const TtftReport& report) {
  nlohmann::ordered_json json = report.header;
  json["lines"] = nlohmann::ordered_json::array();
  for (const TtftLine& line : report.lines) json["lines"].push_back(TtftJson(line));
  return json;
}

}  // namespace qkvshare::cli
